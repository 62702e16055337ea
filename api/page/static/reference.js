// Swagger UI over the service's own document. Nothing is kept: a key that is typed here goes with the page.
"use strict";
SwaggerUIBundle({
  dom_id: "#reference",
  url: document.getElementById("reference").dataset.document,
  validatorUrl: null,
  persistAuthorization: false,
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: false,
});

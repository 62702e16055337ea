// Before anything is painted: the choice of light or dark, where one was made.
"use strict";
(() => {
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();

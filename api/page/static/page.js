// Keeps an open page up to date, and says what came of actions. The page works without.
"use strict";
(() => {
  const live = document.getElementById("live");
  const following = document.getElementById("following");
  const said = document.getElementById("said");
  const problem = document.getElementById("problem");
  const LONGEST_WAIT_MS = 60000;
  const SHOWN_MS = 12000;

  // ---- updates: one stream while the page is seen, and none while it is hidden

  let stream = null;
  let again = null;
  let waitMs = 2000;

  function follow() {
    clearTimeout(again);
    if (stream || document.hidden || !following) return;
    stream = new EventSource(following.dataset.updates);
    stream.addEventListener("open", () => { waitMs = 2000; });
    stream.addEventListener("changed", () => htmx.trigger(live, "page:changed"));
    stream.addEventListener("signed_out", () => { leave(); location.reload(); });
    stream.addEventListener("error", () => {
      stale();
      if (stream && stream.readyState === EventSource.CLOSED) {  // refused: no stream for now
        leave();
        again = setTimeout(() => { htmx.trigger(live, "page:changed"); follow(); }, waitMs);
        waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
      }
    });
  }

  function leave() {
    clearTimeout(again);
    if (stream) stream.close();
    stream = null;
  }

  function state(name, words) {
    if (!following || following.dataset.state === name) return;
    following.dataset.state = name;
    following.querySelector(".words").textContent = words;
  }

  function stale() {
    state("stale", "Not up to date: trying again");
  }

  if (following && live) {
    document.addEventListener("visibilitychange", () => document.hidden ? leave() : follow());
    window.addEventListener("pagehide", leave);
    window.addEventListener("pageshow", follow);
    follow();
  }

  // ---- a page that answers an action is at its view's address, so that a reload does not act again

  const address = live && live.getAttribute("hx-get");
  if (address && location.pathname + location.search !== address) history.replaceState(null, "", address + location.hash);

  // ---- what a person has begun to fill in stays until it is sent

  function touch(event) {
    const form = event.target.closest("#live form");
    if (form) form.dataset.touched = "yes";
  }

  document.addEventListener("input", touch);
  document.addEventListener("change", touch);
  document.addEventListener("htmx:beforeRequest", (event) => { delete event.detail.elt.dataset.touched; });
  if (window.Idiomorph) {
    Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !(old.dataset && old.dataset.touched);
    Idiomorph.defaults.callbacks.beforeNodeRemoved = Idiomorph.defaults.callbacks.beforeNodeMorphed;
  }

  // ---- what has the focus may be taken away by an update: it then goes to where its view begins

  let focused = null;
  document.addEventListener("htmx:beforeSwap", () => { focused = document.activeElement; });
  document.addEventListener("htmx:afterSwap", () => {
    const main = document.getElementById("main");
    if (focused && !focused.isConnected && main) main.focus({ preventScroll: true });
    focused = null;
  });

  // ---- a form that makes a page anew is sent once, however often its button is pressed

  function release() {
    for (const button of document.querySelectorAll("button[data-sent]")) {
      button.disabled = false;
      delete button.dataset.sent;
    }
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || form.hasAttribute("hx-post")) return;
    for (const button of form.querySelectorAll("button")) {
      button.disabled = true;
      button.dataset.sent = "yes";
    }
  });
  window.addEventListener("pageshow", release);  // by the browser's Back

  // ---- what came of requests: asked of the request, since an update may have taken away the form that sent it

  function show(region, text) {
    region.replaceChildren();
    const words = document.createElement("p");
    words.textContent = text;
    region.append(words);
    clearTimeout(region.goes);
    region.goes = setTimeout(() => region.replaceChildren(), SHOWN_MS);
  }

  function answered(request) {
    if (request.elt === live) return request.successful ? state("live", "Up to date") : stale();
    const message = request.xhr.getResponseHeader("Page-Said");
    if (message) show(said, JSON.parse(message));
    if (request.failed) {
      const answer = new DOMParser().parseFromString(request.xhr.responseText, "text/html");
      show(problem, (answer.querySelector(".big") || answer.body).textContent.trim());
    }
  }

  function unanswered(request) {
    if (request.elt === live) return stale();
    show(problem, "The service does not answer. Nothing was changed, as far as this page knows.");
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    const request = event.detail;  // htmx adds to it what came of the request
    request.xhr.addEventListener("load", () => answered(request));
    request.xhr.addEventListener("error", () => unanswered(request));
  });

  // ---- on a narrow screen the navigation scrolls: to where one is

  const current = document.querySelector(".bar nav [aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "center" });

  // ---- light or dark

  const theme = document.getElementById("theme");
  if (theme) theme.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page alone */ }
    window.dispatchEvent(new Event("page:theme"));
  });
})();

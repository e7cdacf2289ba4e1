// Keeps an open page up to date: parts of the page come as server-sent events, and replace what is there.
// Without this file every page works, and is reloaded by hand.
"use strict";

(() => {
  const path = document.body.dataset.stream;
  const live = document.getElementById("live");
  if (!path || !live || !window.EventSource) return;

  const waiting = new Map();

  function report(text) {
    if (live.textContent !== text) live.textContent = text;
  }

  // What a person is typing or choosing in is not taken away: it is replaced when they leave it.
  function isInUse(element) {
    const active = document.activeElement;
    return element.contains(active) && active.matches("input, select, textarea");
  }

  function replace(id, html) {
    const element = document.getElementById(id);
    if (!element) return;
    if (isInUse(element)) {
      waiting.set(id, html);
      return;
    }
    waiting.delete(id);
    const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
    const open = new Set(Array.from(element.querySelectorAll("details[open]"), (one) => one.id));
    element.innerHTML = html;
    for (const one of element.querySelectorAll("details")) if (open.has(one.id)) one.open = true;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  document.addEventListener("focusout", () => {
    setTimeout(() => waiting.forEach((html, id) => replace(id, html)), 0);
  });

  const source = new EventSource(path);
  source.addEventListener("sections", (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
    report("Live.");
  });
  source.addEventListener("alive", () => report("Live."));
  source.addEventListener("trouble", (event) => report(JSON.parse(event.data)));
  source.addEventListener("ended", (event) => {
    source.close();
    report(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    report(source.readyState === EventSource.CLOSED ? "Not live: reload the page." : "Connecting again.");
  });
})();

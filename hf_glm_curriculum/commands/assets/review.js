"use strict";
// Keys press the page's own buttons, so that both do the same.
(() => {
  const buttons = { k: "keep", f: "fix", d: "drop", s: "skip", b: "back", u: "undo", r: "reset" };
  let busy = false;
  const editor = () => document.querySelector("#hgc-editor textarea");
  const press = (name) => {
    const button = document.querySelector(`button#hgc-${name}`);
    // One press at a time: the next one must be about what is then on the screen.
    if (!button || busy) return;
    busy = true;
    setTimeout(() => { busy = false; }, 1500);
    button.click();
  };
  const typing = (target) => target.matches("textarea, input:not([type=radio]), [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey || event.repeat) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      if (event.key === "Enter" && event.ctrlKey) { event.preventDefault(); event.target.blur(); press("fix"); }
      return;
    }
    if (event.ctrlKey) return;
    if (event.key === "e" && editor()) { event.preventDefault(); editor().focus(); return; }
    const name = buttons[event.key.toLowerCase()];
    if (name) { event.preventDefault(); press(name); }
  });
  new MutationObserver((changes) => {
    const shown = changes.some((c) => c.target.closest?.("#hgc-view, #hgc-note"));
    if (shown) busy = false;
  }).observe(document.documentElement, { childList: true, subtree: true });
})();

"use strict";
// Everything on the page is there without this script; it only filters and shows details.
for (const panel of document.querySelectorAll("[data-filter]")) {
  const items = [...panel.querySelectorAll("[data-search]")];
  const controls = [...panel.querySelectorAll(".controls input, .controls select")];
  const count = panel.querySelector("output");
  const apply = () => {
    let shown = 0;
    for (const item of items) {
      item.hidden = !controls.every((control) =>
        control.tagName === "INPUT"
          ? item.dataset.search.includes(control.value.trim().toLowerCase())
          : !control.value || (item.dataset[control.name] || "").split(" ").includes(control.value)
      );
      shown += item.hidden ? 0 : 1;
    }
    if (count) count.textContent = `${shown} of ${items.length}`;
  };
  for (const control of controls) control.addEventListener("input", apply);
  panel.querySelector(".controls").hidden = false;
  apply();
}
const source = document.getElementById("texts");
const detail = document.getElementById("detail");
if (source && detail) {
  const texts = JSON.parse(source.textContent);
  const line = (name, text) => {
    const label = document.createElement("div");
    label.className = "label";
    label.textContent = name;
    const body = document.createElement("div");
    body.className = "text";
    body.dir = "auto";
    body.textContent = text;
    return [label, body];
  };
  const show = (event) => {
    const dot = event.target.closest && event.target.closest("[data-key]");
    if (!dot) return;
    for (const other of document.querySelectorAll(".chosen")) other.classList.remove("chosen");
    dot.classList.add("chosen");
    const title = dot.querySelector("title").textContent;
    const known = texts[dot.dataset.key];
    detail.replaceChildren(
      ...line("sample", title),
      ...(known ? line("prompt", known[0]) : []),
      ...line("response", known ? known[1] : "The text of this sample is not kept in the report.")
    );
  };
  for (const chart of document.querySelectorAll("#data-map svg, #detection svg")) {
    chart.addEventListener("click", show);
    chart.addEventListener("mouseover", show);
  }
}

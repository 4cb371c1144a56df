"use strict";
(() => {
  const sheet = JSON.parse(document.getElementById("sheet").textContent);
  const at = (id) => document.getElementById(id);
  const place = "hf_glm_curriculum.sheet." + sheet.sheet;
  const state = { rater: "", choices: {}, comments: {}, current: 0 };
  const buttons = [...document.querySelectorAll("[data-choice]")];

  // A browser may forbid storage for files; ratings then live until the page is closed.
  const keep = () => {
    try { localStorage.setItem(place, JSON.stringify(state)); }
    catch { at("message").textContent = "This browser keeps nothing for files: save before you close the page."; }
  };
  try { Object.assign(state, JSON.parse(localStorage.getItem(place) || "{}")); } catch { /* anew */ }

  const rated = () => sheet.items.filter((item) => state.choices[item.item]).length;

  function show() {
    const total = sheet.items.length;
    state.current = Math.min(Math.max(state.current, 0), total - 1);
    const item = sheet.items[state.current];
    at("prompt").textContent = item.prompt;
    at("a").textContent = item.answer_a;
    at("b").textContent = item.answer_b;
    at("comment").value = state.comments[item.item] || "";
    at("place").textContent = `${state.current + 1} of ${total}`;
    at("count").textContent = `${rated()} of ${total} rated`;
    at("done").style.width = `${(100 * rated()) / total}%`;
    at("back").disabled = state.current === 0;
    at("next").disabled = state.current === total - 1;
    at("rater").value = state.rater;
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(state.choices[item.item] === button.dataset.choice));
    }
  }

  function choose(choice) {
    const item = sheet.items[state.current];
    state.choices[item.item] = choice;
    const open = sheet.items.findIndex((one, i) => i > state.current && !state.choices[one.item]);
    const any = sheet.items.findIndex((one) => !state.choices[one.item]);
    if (open >= 0 || any >= 0) state.current = open >= 0 ? open : any;
    else at("message").textContent = "All rated. Save your ratings and send the file back.";
    keep();
    show();
  }

  const move = (by) => { state.current += by; keep(); show(); };

  for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.choice));
  at("back").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  at("rater").addEventListener("input", (event) => { state.rater = event.target.value; keep(); });
  at("comment").addEventListener("input", (event) => {
    state.comments[sheet.items[state.current].item] = event.target.value;
    keep();
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const choice = { 1: "A", 2: "tie", 3: "B" }[event.key];
    if (choice) choose(choice);
    else if (event.key === "ArrowLeft") move(-1);
    else if (event.key === "ArrowRight") move(1);
  });

  at("save").addEventListener("click", () => {
    if (!state.rater.trim()) {
      at("message").textContent = "Please write your name first.";
      at("rater").focus();
      return;
    }
    const { rater, choices, comments } = state;
    const found = { format: sheet.format, sheet: sheet.sheet, rater: rater.trim(), choices, comments };
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(found, null, 1)], { type: "application/json" }));
    link.download = `ratings-${rater.trim().replace(/[^\p{L}\p{N}]+/gu, "-")}.json`;
    link.click();
    const left = sheet.items.length - rated();
    at("message").textContent = left ? `Saved; ${left} are not rated yet.` : "Saved. Thank you!";
  });

  at("load").addEventListener("change", async (event) => {
    try {
      const found = JSON.parse(await event.target.files[0].text());
      if (found.format !== sheet.format || found.sheet !== sheet.sheet) throw new Error("another sheet");
      Object.assign(state, { rater: found.rater, choices: found.choices, comments: found.comments });
      keep();
      show();
      at("message").textContent = `${rated()} ratings taken from the file.`;
    } catch (error) {
      at("message").textContent = `This file holds no ratings of this sheet (${error.message}).`;
    }
  });

  show();
})();

"use strict";
(() => {
  const tip = document.getElementById("tip");
  const each = (selector, action) => document.querySelectorAll(selector).forEach(action);
  const move = (event) => {
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const above = event.clientY - tip.offsetHeight - 14;
    tip.style.left = Math.max(8, Math.min(event.clientX + 12, room)) + "px";
    tip.style.top = (above < 4 ? event.clientY + 18 : above) + "px";
  };
  const light = (layer) => each(".band[data-layer]", (band) => band.classList.toggle("on", band.dataset.layer === layer));
  const over = (event) => {
    const target = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !target;
    light(target ? target.dataset.layer : null);
    if (target) {
      tip.textContent = target.dataset.tip;
      move(event);
    }
  };
  document.addEventListener("pointerover", over);
  document.addEventListener("pointerdown", over);
  document.addEventListener("pointermove", (event) => tip.hidden || move(event));
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  each("[data-switch]", (button) => button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    each(`[data-arm="${button.dataset.switch}"]`, (part) => part.classList.toggle("off", !shown));
  }));
})();

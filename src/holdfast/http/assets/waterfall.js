// The waterfall: drag over a part of it to see that part larger. The buttons do the same, and so do + - 0.
(() => {
  "use strict";
  const MOST = 64, LEAST_DRAG = 6;
  const box = () => document.querySelector(".wf-picture");
  const drawing = () => document.querySelector(".wf-picture svg.wf");
  const zoomed = () => (parseFloat(drawing()?.getAttribute("width")) || 100) / 100;
  // `middle` is the place, as a share of the whole width, that is in the middle afterwards.
  const show = (zoom, middle) => {
    const around = box(), svg = drawing();
    if (!svg) return;
    const at = middle ?? (around.scrollLeft + around.clientWidth / 2) / around.scrollWidth;
    svg.setAttribute("width", `${100 * Math.max(1, Math.min(MOST, zoom))}%`);
    around.scrollLeft = at * around.scrollWidth - around.clientWidth / 2;
  };
  const by = { in: () => show(zoomed() * 2), out: () => show(zoomed() / 2), whole: () => show(1) };
  document.addEventListener("click", (event) => by[event.target.closest("[data-zoom-by]")?.dataset.zoomBy]?.());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest(".wf-picture")) return;
    const how = { "+": "in", "=": "in", "-": "out", 0: "whole", Escape: "whole" }[event.key];
    if (how) { event.preventDefault(); by[how](); }
  });
  document.addEventListener("dblclick", (event) => { if (event.target.closest(".wf-picture")) by.whole(); });

  let from = null, range = null;
  const place = (event) => event.clientX - box().getBoundingClientRect().left + box().scrollLeft;
  document.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch" || !event.target.closest(".wf-picture")) return;
    from = place(event);
    event.preventDefault();
    box().focus();
  });
  document.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = place(event);
    if (!range) {
      range = document.createElement("div");
      range.className = "wf-range";
      box().append(range);
    }
    range.style.left = `${Math.min(from, to)}px`;
    range.style.width = `${Math.abs(to - from)}px`;
  });
  document.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const to = place(event), wide = Math.abs(to - from), whole = box().scrollWidth;
    if (wide >= LEAST_DRAG) show((zoomed() * box().clientWidth) / wide, (from + to) / 2 / whole);
    from = null;
    range?.remove();
    range = null;
  });
})();

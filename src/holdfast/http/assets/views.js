// Named views: the filters of a list under a name of your own, kept by this browser for this server.
(() => {
  "use strict";
  const mount = document.documentElement.dataset.mount || "";
  const KEY = `holdfast.views${mount}`, MOST = 50;
  const bar = document.querySelector("[data-views]");
  let kept;
  try { kept = JSON.parse(localStorage.getItem(KEY) || "[]"); } catch { return; }
  if (!Array.isArray(kept)) kept = [];
  const fits = (each) => typeof each?.name === "string" && typeof each?.place === "string" &&
    each.place.startsWith(`${mount}/`) && !each.place.startsWith("//");
  kept = kept.filter(fits).slice(0, MOST);
  const keep = () => { try { localStorage.setItem(KEY, JSON.stringify(kept)); } catch { /* it may be full */ } draw(); };
  const link = (each) => {
    const a = document.createElement("a");
    a.href = each.place;
    a.textContent = each.name;
    return a;
  };
  const here = () => {
    const query = new URLSearchParams(location.search);
    query.delete("after");
    return location.pathname + (String(query) ? `?${query}` : "");
  };
  const draw = () => {
    const list = document.querySelector("#saved-views");
    list?.replaceChildren(...kept.map((each) => {
      const item = document.createElement("li"), kind = document.createElement("span"), a = link(each);
      kind.className = "muted";
      kind.textContent = "view";
      a.append(kind);
      item.append(a);
      return item;
    }));
    if (!bar) return;
    const mine = kept.filter((each) => each.place.split("?")[0] === location.pathname);
    bar.querySelector("[data-saved]").replaceChildren(...mine.map((each) => {
      const chip = document.createElement("span"), away = document.createElement("button");
      chip.className = each.place === here() ? "chip on" : "chip";
      away.type = "button";
      away.className = "copy";
      away.textContent = "×";
      away.setAttribute("aria-label", `Forget the view ${each.name}`);
      away.addEventListener("click", () => { kept = kept.filter((other) => other !== each); keep(); });
      chip.append(link(each), away);
      return chip;
    }));
    bar.dataset.ready = "";
  };
  bar?.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    event.stopPropagation();
    const field = event.target.elements.name, name = field.value.trim();
    if (!name) return;
    kept = [{ name, place: here() }, ...kept.filter((each) => each.name !== name || each.place.split("?")[0] !== location.pathname)].slice(0, MOST);
    field.value = "";
    event.target.closest("details").open = false;
    keep();
  });
  draw();
})();

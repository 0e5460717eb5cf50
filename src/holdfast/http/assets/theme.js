// What a person chose, before the page is drawn: nothing flashes.
(() => {
  const root = document.documentElement;
  try {
    for (const name of ["theme", "density", "zone"]) {
      const chosen = new URLSearchParams(location.search).get(name) || localStorage.getItem(`holdfast.${name}`);
      if (chosen) root.dataset[name] = chosen;
    }
  } catch { /* storage may be off */ }
})();

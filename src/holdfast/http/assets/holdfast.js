// What the pages do by themselves: keys, times, refreshing, streams, dialogs. No framework, nothing from elsewhere.
(() => {
  "use strict";
  const root = document.documentElement;
  const mount = root.dataset.mount || "";
  const $ = (where, from = document) => from.querySelector(where);
  const $$ = (where, from = document) => [...from.querySelectorAll(where)];
  const remember = (name, value) => {
    root.dataset[name] = value;
    try { localStorage.setItem(`holdfast.${name}`, value); } catch { /* storage may be off */ }
  };

  // Times: the server's clock counts, whatever the browser's says.
  let ahead = 0;
  const setClock = (text) => { if (text) ahead = Date.parse(text) - Date.now(); };
  setClock(root.dataset.now);
  const now = () => Date.now() + ahead;
  const ago = (at) => {
    const seconds = (now() - at) / 1000, size = Math.abs(seconds);
    if (size < 5) return "just now";
    const [length, name] = size < 90 ? [1, "s"] : size < 5400 ? [60, "min"] : size < 129600 ? [3600, "h"] : [86400, "d"];
    const text = `${Math.round(size / length)} ${name}`;
    return seconds > 0 ? `${text} ago` : `in ${text}`;
  };
  const span = (seconds) => {
    if (seconds < 60) return `${Math.max(0, seconds).toFixed(1)} s`;
    const whole = Math.round(seconds);
    const [size, name, below, part] = whole >= 86400 ? [86400, "d", 3600, "h"] : whole >= 3600 ? [3600, "h", 60, "m"] : [60, "m", 1, "s"];
    return `${Math.floor(whole / size)} ${name} ${Math.floor((whole % size) / below)} ${part}`;
  };
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const tick = () => {
    for (const each of $$("time[data-relative]")) put(each, ago(Date.parse(each.dateTime)));
    for (const each of $$("time[data-countdown]")) {
      const left = (Date.parse(each.dateTime) - now()) / 1000;
      put(each, left > 0 ? span(left) : "now");
    }
    for (const each of $$("[data-since]")) put(each, span((now() - Date.parse(each.dataset.since)) / 1000));
  };
  // A whole time in UTC and in the zone of this browser; the one that a person chose comes first.
  const whole = (at) => {
    const date = new Date(at), utc = `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    const mine = date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    return root.dataset.zone === "local" ? [mine, utc] : [utc, mine];
  };
  const local = () => {
    for (const each of $$("time[datetime]")) {
      const [first, second] = whole(each.dateTime);
      each.title = `${first} · ${second}`;
      if (each.hasAttribute("data-clock")) put(each, first);
    }
    const name = $("[data-zone-name]");
    if (name) put(name, root.dataset.zone === "local" ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC");
  };
  setInterval(() => { if (!document.hidden) tick(); }, 1000);

  // Dialogs.
  const closeAll = () => $$("dialog[open]").forEach((each) => each.close());
  document.addEventListener("click", (event) => {
    const to = (where) => event.target.closest(where);
    const opener = to("[data-opens]");
    if (opener) { const it = document.getElementById(opener.dataset.opens); it.showModal(); $("input:not([type=hidden]), textarea", it)?.focus(); return; }
    if (to("[data-closes]")) { to("dialog").close(); return; }
    if (event.target.nodeName === "DIALOG") { event.target.close(); return; }
    if (to("[data-palette]")) { openPalette(); return; }
    if (to("[data-help]")) { $("#keys")?.showModal(); return; }
    if (to("[data-back]")) { history.back(); return; }
    if (to("[data-menu]")) { $(".nav").classList.toggle("open"); return; }
    if (to("[data-theme-switch]")) {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      remember("theme", dark ? "light" : "dark");
      return;
    }
    if (to("[data-zone-switch]")) { remember("zone", root.dataset.zone === "local" ? "utc" : "local"); local(); return; }
    if (to("[data-density]") && to("button")) { remember("density", root.dataset.density === "dense" ? "roomy" : "dense"); return; }
    const copier = to("[data-copy]");
    if (copier) { copy(copier.dataset.copy, copier); event.preventDefault(); return; }
    const row = to("tr[data-href]");
    if (row && !to("a, button, input, label, summary, select") && !String(getSelection())) location.href = row.dataset.href;
  });
  const copy = (text, from) => {
    navigator.clipboard?.writeText(text).then(() => {
      from?.classList.add("copied");
      setTimeout(() => from?.classList.remove("copied"), 1200);
    });
  };

  // The palette.
  const palette = $("#palette");
  const openPalette = () => { closeAll(); palette?.showModal(); const field = $("input", palette); field.value = ""; narrow(""); field.focus(); };
  const narrow = (text) => {
    const wanted = text.trim().toLowerCase();
    for (const each of $$("#places li, #saved-views li", palette)) each.hidden = wanted !== "" && !each.textContent.toLowerCase().includes(wanted);
    if (!wanted) $("#found", palette).replaceChildren();
    choose(0);
  };
  const choices = () => $$("li:not([hidden]) a", palette);
  let chosen = 0;
  const choose = (n) => {
    const all = choices();
    chosen = Math.max(0, Math.min(n, all.length - 1));
    all.forEach((each, number) => each.classList.toggle("at", number === chosen));
    all[chosen]?.scrollIntoView({ block: "nearest" });
  };
  palette?.addEventListener("input", (event) => narrow(event.target.value));
  palette?.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") { choose(chosen + 1); event.preventDefault(); }
    if (event.key === "ArrowUp") { choose(chosen - 1); event.preventDefault(); }
    if (event.key === "Enter") { event.preventDefault(); const it = choices()[chosen]; if (it) it.click(); }
  });
  // What somebody has unfolded is not folded again by what comes.
  document.addEventListener("htmx:beforeSwap", (event) => { if ($("details[open]", event.target)) event.detail.shouldSwap = false; });
  document.addEventListener("htmx:afterSwap", (event) => { if (event.target.id === "found") choose(0); });

  // Keys.
  const rows = () => $$("[data-rows] [data-id]");
  const current = () => $("[data-rows] .at");
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(current());
    const to = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
    all.forEach((each) => each.classList.toggle("at", each === to));
    to.scrollIntoView({ block: "nearest" });
  };
  const nextFailure = () => {
    const all = rows(), from = all.indexOf(current());
    const to = all.slice(from + 1).find((each) => each.dataset.tone === "failed");
    if (to) { all.forEach((each) => each.classList.toggle("at", each === to)); to.scrollIntoView({ block: "center" }); }
  };
  let afterG = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    if (Date.now() - afterG < 1200) {
      afterG = 0;
      const place = $(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (place) { place.click(); return; }
    }
    const row = current();
    switch (event.key) {
      case "g": afterG = Date.now(); break;
      case "/": event.preventDefault(); openPalette(); break;
      case "?": $("#keys")?.showModal(); break;
      case "j": step(1); break;
      case "k": step(-1); break;
      case ".": nextFailure(); break;
      case "Enter": if (row?.dataset.href && event.target === document.body) location.href = row.dataset.href; break;
      case "x": { const box = row && $("input[type=checkbox]", row); if (box) { box.checked = !box.checked; selected(); } break; }
      case "c": copy(row?.dataset.id || $("[data-copy]")?.dataset.copy, row); break;
      case "l": $("[data-follow]")?.click(); break;
    }
  });

  // Selecting rows.
  const selected = () => {
    const form = $("[data-bulk]");
    if (!form) return;
    const count = $$("input[name=id]:checked", form).length;
    const bar = $(".bulkbar", form);
    if (bar) { bar.hidden = count === 0; put($("[data-chosen]", bar), String(count)); }
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) $$("input[name=id]").forEach((each) => { each.checked = event.target.checked; });
    if (event.target.closest("[data-bulk]")) selected();
    if (event.target.matches(".filters select")) event.target.form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    for (const each of $$("input, select", form)) if (form.method === "get" && each.value === "") each.disabled = true;
    if (form.method === "post") setTimeout(() => $$("button", form).forEach((each) => { each.disabled = true; }), 0);
  });
  window.addEventListener("pageshow", () => $$("form [disabled]").forEach((each) => { each.disabled = false; }));

  // Columns stay as wide as they first were, so that nothing moves sideways when their contents change.
  const settle = () => {
    for (const table of $$(".list > .table")) {
      const heads = $$("thead th", table);
      table.classList.remove("settled");
      for (const each of heads) each.style.width = "";
      const widths = heads.map((each) => each.getBoundingClientRect().width);
      if (!widths.some(Boolean)) continue;  // on a phone, rows are cards
      heads.forEach((each, number) => { each.style.width = `${widths[number]}px`; });
      table.classList.add("settled");
    }
  };
  // What scrolls is reached by keys.
  const reach = () => {
    for (const each of $$("pre, .quote, .list, .wf-box, .drawing, .prose table"))
      if (each.scrollHeight > each.clientHeight + 1 || each.scrollWidth > each.clientWidth + 1) each.tabIndex = 0;
  };
  settle();
  reach();
  window.addEventListener("resize", () => { settle(); reach(); });
  document.addEventListener("toggle", reach, true);

  // Where rows come while one looks, there is room for some of them, also when the last has come.
  const growing = $("#waterfall[data-live]");
  growing?.classList.add("grows");

  // Refreshing: what is live is fetched again and morphed, so that focus, scroll and folds stay. Rows that would move
  // what one reads are announced first. If it cannot be fetched, the page says why, and what it shows stays.
  let failing = 0, busy = false, gone = false;
  const SILENT = "The server does not answer. This page shows what it last said, and continues by itself.";
  const GONE = "This was removed while you looked at it. The page shows what it last was.";
  const away = (words) => { const it = $(".offline"); if (it) { put(it, words); it.hidden = !words; } };
  const problemOf = (page) => $(".bare-card [data-detail]", page)?.textContent.trim();
  const refresh = async (all = false) => {
    const parts = $$("[data-live]");
    if (!parts.length || busy || gone || $("dialog[open]") || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html", "hx-request": "true" }, redirect: "follow" });
      if (answer.headers.get("hx-redirect")) { location.reload(); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.status === 404) { gone = true; away(GONE); return; }
      if (!answer.ok) { failing += 1; away(`${problemOf(page) || `The server answers ${answer.status}.`} This page tries again by itself.`); return; }
      const empty = parts.find((part) => part.matches(".empty") && !part.parentElement.closest("[data-live]"));
      if (empty && !$("#rows.empty", page)) { location.reload(); return; }  // the first row has come
      setClock(page.documentElement.dataset.now);
      for (const part of parts) {
        const fresh = page.getElementById(part.id);
        if (fresh) morph(part, fresh, all);
      }
      const inbox = $(".nav .count", page), shown = $(".nav .count");
      if (inbox && shown) { put(shown, inbox.textContent); shown.hidden = inbox.hidden; }
      failing = 0;
      away("");
    } catch { failing += 1; if (failing > 1) away(SILENT); }
    finally { busy = false; tick(); local(); reach(); }
  };
  const idsIn = (part) => $$("[data-id]", part).map((each) => each.dataset.id);
  const morph = (part, fresh, all) => {
    if (!("Idiomorph" in window)) { part.replaceChildren(...fresh.childNodes); return; }
    const shown = idsIn(part), coming = idsIn(fresh);
    if (part.hasAttribute("data-rows") && !all && shown.join("\n") !== coming.join("\n")) {
      for (const each of $$("[data-id]", fresh)) { const old = document.getElementById(each.id); if (old) morphOne(old, each); }
      const known = new Set(shown);
      announce(part, coming.filter((each) => !known.has(each)).length);
      return;
    }
    $(".fresh", part)?.remove();
    morphOne(part, fresh);
    if (all) settle();
  };
  const morphOne = (old, fresh) => window.Idiomorph.morph(old, fresh, {
    ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) => !(
        name === "style" || name === "tabindex" || (name === "class" && (node.classList?.contains("settled") || node.classList?.contains("grows"))) ||
        (name === "open" && (node.nodeName === "DETAILS" || node.nodeName === "DIALOG")) || (name === "class" && node.classList?.contains("at")) ||
        name === "checked" || (name === "width" && node.classList?.contains("wf"))),
      // What comes folds itself, so that it is as high as what it replaces.
      beforeNodeAdded: (node) => { if (node.nodeName === "DETAILS" && node.classList.contains("told")) node.removeAttribute("open"); return true; },
      afterNodeAdded: (node) => { if (node.nodeType === 1) window.htmx?.process(node); },
      beforeNodeMorphed: (node) => !(node.nodeType === 1 && node.hasAttribute("data-keep")),
    },
  });
  const announce = (part, count) => {
    let pill = $(".fresh", part);
    if (!pill) {
      pill = document.createElement("div");
      pill.className = "fresh";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "button primary small";
      button.addEventListener("click", () => { scrollTo({ top: 0 }); pill.remove(); refresh(true); });
      pill.append(button);
      part.prepend(pill);
    }
    put($("button", pill), count ? `${count} new` : "Show changes");
  };
  const pace = Math.min(...$$("[data-live]").map((each) => Number(each.dataset.live)));
  if (Number.isFinite(pace)) setInterval(() => refresh(), pace * 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  const again = $("[data-again]");
  if (again) setTimeout(() => location.reload(), Number(again.dataset.again) * 1000);

  // A stream: what a model writes appears as it is written. One for each tab, closed while nobody looks.
  const box = $("[data-stream]");
  if (box) {
    const lasting = "session" in box.dataset;  // a session has another run after this one
    let source = null, last = box.dataset.after || "", follow = false, asked = 0, turns = Number(box.dataset.turns || 0);
    const text = () => $("[data-text]", box);
    // What would change the order of reading, or cannot be seen, is written as its escape: the server does so too.
    const plain = (words) => words.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
      (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
    const soon = () => { clearTimeout(asked); asked = setTimeout(() => refresh(), 300); };
    const said = (event) => {
      if (event.lastEventId) last = event.lastEventId;
      const data = JSON.parse(event.data), where = text();
      if (event.type === "run_created") turns = 0;
      if (event.type === "text_delta" && where) {
        if (data.turn <= turns) return;  // it is on the page already
        where.hidden = false;
        where.append(plain(data.text));
        if (where.textContent.length > 200000) where.textContent = where.textContent.slice(-100000);
        if (follow) where.scrollIntoView({ block: "end" });
      } else {
        if (where && ["turn_ended", "turn_restarted", "run_ended", "message_added"].includes(event.type)) { where.textContent = ""; where.hidden = true; }
        soon();
      }
      if (event.type === "turn_ended") turns = Math.max(turns, data.turn);
      if (event.type === "run_ended") {
        turns = 0;
        if (!lasting) { box.dataset.ended = "1"; close(); }
        setTimeout(() => refresh(), 1000);
      }
    };
    const kinds = ["run_created", "run_state", "turn_started", "turn_restarted", "turn_failed", "text_delta", "turn_ended",
      "tool_called", "tool_ended", "tools_complete", "approval_requested", "question_asked", "input_requested", "input_given", "run_ended"];
    const open = () => {
      if (source || gone || document.hidden || box.dataset.ended) return;
      source = new EventSource(`${box.dataset.stream}${last ? `?after=${encodeURIComponent(last)}` : ""}`);
      for (const kind of kinds) source.addEventListener(kind, said);
      source.addEventListener("error", () => { if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); } });
    };
    const close = () => { source?.close(); source = null; };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    window.addEventListener("pagehide", close);
    $("[data-follow]")?.addEventListener("click", (event) => {
      follow = !follow;
      event.currentTarget.setAttribute("aria-pressed", String(follow));
      if (follow) box.scrollIntoView({ block: "end" });
    });
    open();
    if (lasting && !location.hash && $("[data-compose]")) scrollTo({ top: document.body.scrollHeight });
  }
  document.addEventListener("keydown", (event) => {
    const form = event.target.closest("[data-compose]");
    if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  });
  const asked = document.getElementById(location.hash.slice(1));
  if (asked?.nodeName === "DIALOG") asked.showModal();
  tick();
  local();
})();

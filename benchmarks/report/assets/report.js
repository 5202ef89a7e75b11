"use strict";
(function () {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));

  // Light, dark, or as the system says. Storage may be forbidden for files.
  const themes = ["auto", "light", "dark"];
  const themeButton = document.getElementById("theme");
  const kept = {
    read() { try { return localStorage.getItem("theme"); } catch (error) { return null; } },
    write(value) { try { localStorage.setItem("theme", value); } catch (error) { /* only for this visit, then */ } },
  };
  function setTheme(name) {
    if (name === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", name);
    themeButton.textContent = "Theme: " + name;
  }
  let theme = themes.includes(kept.read()) ? kept.read() : "auto";
  setTheme(theme);
  themeButton.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    kept.write(theme);
    setTheme(theme);
  });

  // Sort and filter the claims.
  const table = document.getElementById("claims-table");
  if (table) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const status = document.getElementById("claims-status");
    const search = document.getElementById("claims-search");
    const figure = document.getElementById("claims-figure");
    const verdicts = all("#claims-verdicts button");
    function filter() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const shown = new Set(verdicts.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.verdict));
      let count = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const fits = shown.has(row.dataset.verdict) && (!figure.value || row.dataset.figure === figure.value) &&
          words.every((word) => text.includes(word));
        row.hidden = !fits;
        count += fits ? 1 : 0;
      }
      status.textContent = count + " of " + rows.length + " claims shown";
    }
    search.addEventListener("input", filter);
    figure.addEventListener("change", filter);
    for (const button of verdicts) {
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
        filter();
      });
    }
    all("thead th", table).forEach((head) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        all("thead th[aria-sort]", table).forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = head.dataset.key;
        const value = (row) => Number(row.getAttribute("data-" + key));
        const sorted = rows.slice().sort((a, b) => (up ? value(a) - value(b) : value(b) - value(a)));
        sorted.forEach((row) => body.appendChild(row));
        status.textContent = "sorted by " + button.textContent.trim() + (up ? ", ascending" : ", descending");
      });
    });
    filter();
  }

  // Show and hide series of a figure.
  all("figure").forEach((block) => {
    all(".legend button", block).forEach((button) => {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        all("g.series", block).forEach((group) => {
          if (group.dataset.series === button.dataset.series) group.toggleAttribute("hidden", !on);
        });
      });
    });
  });

  // Values: under the pointer, or with the arrow keys where a plot has the focus.
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");
  let active = null;
  function show(mark, x, y) {
    if (active) active.classList.remove("active");
    active = mark;
    mark.classList.add("active");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y - box.height - 12 < 4 ? y + 18 : y - box.height - 12) + "px";
  }
  function hide() {
    if (active) active.classList.remove("active");
    active = null;
    tip.hidden = true;
  }
  all("svg.plot").forEach((plot) => {
    // The browser's own tooltips would cover ours.
    all("title", plot).forEach((title) => title.remove());
    plot.setAttribute("tabindex", "0");
    let place = -1;
    const visible = () => all("g.series", plot).filter((g) => !g.hasAttribute("hidden")).flatMap((g) => all(".mark", g));
    plot.addEventListener("pointermove", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) show(mark, event.clientX, event.clientY); else hide();
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      const marks = visible();
      if (!step || !marks.length) return;
      event.preventDefault();
      place = (place + step + marks.length) % marks.length;
      const box = marks[place].getBoundingClientRect();
      show(marks[place], box.left + box.width / 2, box.top);
      said.textContent = marks[place].dataset.tip;
    });
  });
  addEventListener("scroll", hide, { passive: true });

  // Copy commands.
  all("button.copy").forEach((button) => {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("code").textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch (error) {
        const range = document.createRange();
        range.selectNodeContents(button.parentElement.querySelector("code"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  });

  // Folded parts open where a link leads into them, and figures where they are printed.
  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details.figure:not([open])");
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
})();

"use strict";
// Optional: the page is complete without this script. Text enters the page through textContent, never as markup.
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const make = (name, text) => Object.assign(document.createElement(name), { textContent: text });
  root.classList.add("js");

  // Shows one load level at a time, the same in every section; first the level of the verdict.
  const panels = all(".panel");
  const levels = new Map(panels.map((panel) => [panel.dataset.level, panel.dataset.title]));
  const show = (level) => {
    panels.forEach((panel) => { panel.hidden = panel.dataset.level !== level; });
    all("[data-switch] button").forEach((b) => b.setAttribute("aria-pressed", String(b.value === level)));
  };
  if (levels.size > 1) {
    all("[data-switch]").forEach((bar) => {
      levels.forEach((title, level) => {
        const choice = bar.appendChild(make("button", title));
        choice.type = "button";
        choice.value = level;
        choice.addEventListener("click", () => {
          const before = bar.getBoundingClientRect().top;
          show(level);
          scrollBy(0, bar.getBoundingClientRect().top - before);  // panels above may have changed their height
        });
      });
      bar.hidden = false;
    });
    root.classList.add("switched");  // the buttons name the level; on paper the headings do
    show((panels.find((panel) => "primary" in panel.dataset) ?? panels[0]).dataset.level);
  }

  // Opens the folded section that holds the target of a link; browsers that do so by themselves lose nothing.
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  // Marks the section that is being read.
  const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
    links.forEach((link) => link.removeAttribute("aria-current"));
    const link = links.get(entry.target.id);
    link?.setAttribute("aria-current", "true");
    if (link) link.closest("ul").scrollLeft = link.offsetLeft - 24;
  }), { rootMargin: "-100px 0px -70% 0px" });
  all("main .body").forEach((body) => seen.observe(body));

  // Shows one trial at a time.
  const select = document.getElementById("trial");
  const trials = all("details.trial");
  const open = () => trials.forEach((trial) => {
    trial.hidden = trial.id !== select.value;
    trial.open = !trial.hidden;
  });
  trials.forEach((trial) => {
    const option = select.appendChild(make("option", trial.querySelector("summary").textContent.trim()));
    option.value = trial.id;
    option.selected = trial.open;
  });
  if (trials.length) {
    select.parentElement.hidden = false;
    select.addEventListener("change", open);
    open();
  }

  // Shows values under the pointer.
  const at = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const seconds = (s) => s >= 1 ? `${s.toPrecision(3)} s` : s >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`;
  const cursor = (svg, x, top, bottom) => {
    let line = svg.querySelector(".cursor");
    if (!line) {
      line = svg.appendChild(document.createElementNS(svg.namespaceURI, "line"));
      line.setAttribute("class", "cursor");
    }
    Object.entries({ x1: x, x2: x, y1: top, y2: bottom }).forEach(([key, value]) => line.setAttribute(key, value));
  };
  const shareAt = (path, x, top, bottom) => {
    const probe = path.getTotalLength();
    let low = 0, high = probe;
    for (let i = 0; i < 24; i++) {
      const middle = (low + high) / 2;
      if (path.getPointAtLength(middle).x <= x) low = middle; else high = middle;
    }
    return (bottom - path.getPointAtLength(low).y) / (bottom - top);
  };
  all("svg.ecdf").forEach((svg) => {
    const out = svg.parentElement.querySelector(".readout");
    const [left, right, top, bottom] = svg.dataset.box.split(" ").map(Number);
    const low = Number(svg.dataset.low), high = Number(svg.dataset.high);
    svg.addEventListener("pointermove", (event) => {
      const x = Math.min(right, Math.max(left, at(svg, event).x));
      const share = (x - left) / (right - left);
      const value = svg.dataset.log ? low * (high / low) ** share : low + share * (high - low);
      cursor(svg, x, top, bottom);
      const parts = all(".pooled", svg).map((path) => `${path.dataset.engine} ${(100 * shareAt(path, x, top, bottom)).toFixed(0)} %`);
      out.textContent = `at or below ${seconds(value)}: ${parts.join(", ")}`;
    });
    svg.addEventListener("pointerleave", () => { out.textContent = ""; svg.querySelector(".cursor")?.remove(); });
  });
})();

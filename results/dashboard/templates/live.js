// Polls once a second; text enters the page through textContent, never as markup.
(() => {
  const at = (id) => document.getElementById(id);
  const make = (name, text, class_) => Object.assign(document.createElement(name), { textContent: text, className: class_ ?? "" });
  const number = (value, digits) => value.toLocaleString("en", { maximumSignificantDigits: digits });
  const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [0, "B"]];
  const UNITS = { share: [100, " %"], s: [1, " s"], w: [1, " W"], j: [1, " J"], mhz: [1, " MHz"], c: [1, " °C"] };
  const reading = (sensor, value) => {  // the unit is the end of the sensor's name
    if (typeof value !== "number") return String(value ?? "–");
    const suffix = sensor.slice(sensor.lastIndexOf("_") + 1);
    if (suffix === "bytes") {
      const [size, unit] = SIZES.find(([least]) => Math.abs(value) >= least);
      return `${number(value / (size || 1), 4)} ${unit}`;
    }
    const [factor, unit] = UNITS[suffix] ?? [1, ""];
    return `${number(value * factor, 6)}${unit}`;
  };
  const row = (...cells) => {
    const line = document.createElement("tr");
    line.append(...cells);
    return line;
  };
  const pace = (counts) => {
    const svg = at("pace");
    const most = Math.max(1, ...counts);
    svg.replaceChildren(...counts.map((count, i) => {
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const height = 76 * count / most;
      Object.entries({ x: 600 - 10 * (counts.length - i), y: 78 - height, width: 8, height, class: "column" })
        .forEach(([key, value]) => bar.setAttribute(key, value));
      return bar;
    }));
  };
  const now = (current) => {
    at("now").hidden = !current;
    if (!current) return;
    at("current").textContent = current.id;
    at("ends").textContent = Object.entries(current.ends).map(([end, count]) => `${count.toLocaleString("en")} ${end}`).join(", ") || "none yet";
    at("first-byte").textContent = current.first_byte_p50_s === null ? "–" : `${number(current.first_byte_p50_s * 1e3, 3)} ms`;
    pace(current.per_second);
    at("sensors").replaceChildren(...Object.entries(current.telemetry).flatMap(([source, values]) =>
      Object.entries(values).map(([sensor, value]) => row(make("td", source), make("td", sensor), make("td", reading(sensor, value), "number")))));
  };
  const draw = (live) => {
    const ended = live.steps.filter(({ state }) => !["planned", "running"].includes(state)).length;
    at("progress").textContent = `${ended} of ${live.steps.length} trials ended`;
    at("status").textContent = live.status;
    at("steps").replaceChildren(...live.steps.map((step) => {
      const name = make("th", step.id);
      name.scope = "row";
      const line = row(name, make("td", step.engine), make("td", step.load), make("td", step.repeat, "number"), make("td", step.state, "word"), make("td", step.why, "why"));
      line.dataset.state = step.state;
      return line;
    }));
    now(live.current);
  };
  const first = JSON.parse(at("data").textContent);
  draw(first);
  const ask = async () => {
    let live = first;
    try {
      live = await (await fetch(location.pathname.replace(/^\/runs/, "/api/runs"))).json();
      draw(live);
    } catch { at("status").textContent = "the dashboard does not answer"; }
    if (live.status === "running") setTimeout(ask, 1000);
  };
  if (first.status === "running") setTimeout(ask, 1000);
})();

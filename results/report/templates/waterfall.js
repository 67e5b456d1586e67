"use strict";
// One request of the displayed trial, chunk by chunk. Text enters the page through textContent, never as markup.
(() => {
  const view = document.getElementById("request-view");
  const select = document.getElementById("request");
  const trial = document.getElementById("trial");
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!Object.keys(data.waterfalls).length) return;
  const part = (name) => view.querySelector(`[data-part=${name}]`);
  const make = (name, text) => Object.assign(document.createElement(name), { textContent: text });
  const UNIT_MS = 0.01;
  const ms = (value) => value >= 1000 ? `${(value / 1000).toPrecision(3)} s`
    : `${value < 1 ? value.toFixed(2) : value.toPrecision(3)} ms`;
  const tick = (value, high) => high >= 1000 ? `${+(value / 1000).toPrecision(3)} s` : `${+value.toPrecision(3)} ms`;

  // Converts a row of the page's data to an object; chunk arrivals become milliseconds after the planned start.
  const arrivals = (packed) => {
    const bytes = atob(packed), times = [];
    let at = 0, number = 0, shift = 0;
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes.charCodeAt(i);
      number += (byte & 127) * 2 ** shift;
      shift += 7;
      if (byte < 128) {
        at += number;
        times.push(at * UNIT_MS);
        number = shift = 0;
      }
    }
    return times;
  };
  const opened = ([index, state, session, turn, prompt, finish, sent, firstByte, ended, chunks, tokens, text, letters, error]) => {
    const times = arrivals(chunks);
    const after = (value) => value === null ? null : value * UNIT_MS;
    return {
      index, state, session, turn, prompt, finish, text, letters, error, times,
      sent: after(sent), firstByte: after(firstByte), ended: after(ended),
      tokens: tokens ?? times.map(() => 1),
    };
  };
  const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
  const label = (request) => request.times.length
    ? `request ${request.index}: ${request.state}, first token ${ms(request.times[0])}, last ${ms(request.times.at(-1))}, ${sum(request.tokens)} tokens`
    : `request ${request.index}: ${request.state}, no token`;

  // The drawing: time runs to the right; each chunk is a bar from the previous arrival to its own, as high as its tokens.
  const LEFT = 118, RIGHT = 990, TOP = 20, HIGHEST = 300;
  const svg = (name, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    node.textContent = text;
    return node;
  };
  const ticks = (high) => {
    const raw = high / 8, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
    return Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => i * step);
  };
  const drawing = (request, colour) => {
    const high = Math.max(request.ended, request.times.at(-1) ?? 0, 1e-3) * 1.02;
    const x = (value) => LEFT + value / high * (RIGHT - LEFT);
    const all = sum(request.tokens), tokenHeight = Math.min(9, Math.max(0.6, (HIGHEST - 24) / Math.max(1, all)));
    const bottom = TOP + 24 + Math.max(12, all * tokenHeight);
    const chart = svg("svg", {
      class: `chart waterfall ${colour}`, viewBox: `0 0 1100 ${(bottom + 40).toFixed(0)}`, role: "img",
      "aria-label": `Request ${request.index}, ${request.state}: ${request.times.length} chunks; the table below has each.`,
    });
    ticks(high).forEach((value) => chart.append(
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP - 4, y2: bottom }),
      svg("text", { class: "tick", x: x(value), y: bottom + 16, "text-anchor": "middle" }, tick(value, high)),
    ));
    const first = request.times[0] ?? request.ended, wait = TOP + 8;
    chart.append(
      svg("path", { class: request.times.length ? "wait" : "failed", d: `M${x(0)} ${wait}H${x(first)}`, "stroke-width": 10 }),
      svg("text", { class: "tick", x: LEFT - 8, y: wait + 4, "text-anchor": "end" }, request.times.length ? "to first token" : "no token"),
      svg("text", { class: "tick", x: RIGHT + 8, y: wait + 4 }, ms(first)),
    );
    if (request.sent !== null) chart.append(svg("path", { class: "sent", d: `M${x(request.sent)} ${wait - 7}v14` }));
    let y = TOP + 24, bars = "", longest = null;
    request.times.forEach((at, i) => {
      const from = i ? request.times[i - 1] : at, height = request.tokens[i] * tokenHeight;
      bars += `M${x(from).toFixed(1)} ${y.toFixed(1)}V${(y + height).toFixed(1)}H${Math.max(x(at), x(from) + 0.8).toFixed(1)}V${y.toFixed(1)}z`;
      if (i && (!longest || at - from > longest.gap)) longest = { gap: at - from, at, y: y + height / 2 };
      y += height;
    });
    chart.append(svg("path", { class: "bars", d: bars }));
    if (longest) {
      const after = x(longest.at) < (LEFT + RIGHT) / 2;  // the bars before it are above, those after it below
      chart.append(svg("text", after
        ? { class: "level", x: x(longest.at) + 8, y: longest.y + 1, "text-anchor": "start" }
        : { class: "level", x: x(longest.at - longest.gap) - 8, y: longest.y + 8, "text-anchor": "end" },
      `longest gap ${ms(longest.gap)}`));
    }
    if (request.times.length) {
      chart.append(svg("text", { class: "tick", x: LEFT - 8, y: TOP + 36, "text-anchor": "end" }, "chunks"));
      chart.append(svg("text", { class: "tick", x: RIGHT + 8, y: TOP + 36 }, `${request.times.length} chunks`));
      if (all > request.times.length) chart.append(svg("text", { class: "tick", x: RIGHT + 8, y: TOP + 50 }, `${all} tokens`));
    }
    chart.append(svg("text", { class: "axis", x: RIGHT, y: bottom + 34, "text-anchor": "end" }, "since its plan"));
    return chart;
  };

  const words = (request) => [
    `Request ${request.index}, session ${request.session}${request.turn ? `, turn ${request.turn + 1}` : ""}: ${request.state}`,
    request.prompt === null ? "" : `${request.prompt} prompt tokens`,
    request.sent === null ? "never sent" : `sent ${ms(request.sent)} after its plan`,
    request.firstByte === null ? "" : `first byte ${ms(request.firstByte)}`,
    `ended ${ms(request.ended)}`,
    request.finish ? `finish reason ${request.finish}` : "",
  ].filter(Boolean).join(", ") + ".";
  const row = (cells) => {
    const line = document.createElement("tr");
    cells.forEach((text) => { line.appendChild(make("td", text)).className = "number"; });
    return line;
  };
  const table = (request) => {
    let sofar = 0;
    return request.times.map((at, i) => {
      sofar += request.tokens[i];
      return row([i + 1, at.toFixed(2), i ? (at - request.times[i - 1]).toFixed(2) : "–", request.tokens[i], sofar]);
    });
  };

  const key = () => document.querySelector("details.trial:not([hidden])").id;
  const rows = () => data.waterfalls[key()];
  const draw = () => {
    const chosen = rows().shown.find(([index]) => String(index) === select.value);
    view.hidden = !chosen;
    if (!chosen) return;
    const request = opened(chosen), trialOf = document.getElementById(key());
    part("drawing").replaceChildren(drawing(request, trialOf.querySelector("summary").classList[0]));
    part("words").textContent = words(request);
    part("error").textContent = request.error ?? "";
    part("said").textContent = request.text;
    part("cut").textContent = request.text.length < request.letters ? `The first ${request.text.length} of ${request.letters} characters of the answer.` : "";
    part("table").replaceChildren(...table(request));
    view.querySelector("[data-part=chunks]").hidden = !request.times.length;
    part("left-out").textContent = rows().note;
    trialOf.querySelectorAll("svg.timeline .chosen").forEach((node) => node.remove());
    const bar = data.bars[key()].find(([, , , index]) => index === request.index);
    if (bar) mark(trialOf.querySelector("svg.timeline"), bar);
  };
  const mark = (chart, [lane, left, right]) => {
    const [top, step] = chart.dataset.lane.split(" ").map(Number);
    chart.append(svg("rect", { class: "chosen", x: left - 1.5, y: top + lane * step, width: right - left + 3, height: step, rx: 2 }));
  };
  const list = () => {
    const shown = rows().shown.map(opened);
    select.replaceChildren(...shown.map((request) => Object.assign(make("option", label(request)), { value: request.index })));
    const slowest = shown.filter((request) => request.state === "ok").sort((a, b) => b.times.at(-1) - a.times.at(-1))[0];
    if (slowest) select.value = slowest.index;
    draw();
  };

  select.addEventListener("change", draw);
  trial.addEventListener("change", list);
  document.querySelectorAll("svg.timeline").forEach((chart) => {
    const readout = chart.parentElement.querySelector(".readout");
    const [top, step] = chart.dataset.lane.split(" ").map(Number);
    const hit = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      const lane = Math.floor((point.y - top) / step);
      return data.bars[key()].find(([row, from, to]) => row === lane && from <= point.x && point.x <= to + 1);
    };
    const rowOf = (index) => rows().shown.find(([number]) => number === index);
    chart.addEventListener("pointermove", (event) => {
      const bar = hit(event);
      readout.textContent = bar ? bar[4] || label(opened(rowOf(bar[3]))) : "";
    });
    chart.addEventListener("pointerleave", () => { readout.textContent = ""; });
    chart.addEventListener("click", (event) => {
      const bar = hit(event);
      if (!bar || !rowOf(bar[3])) return;
      select.value = bar[3];
      draw();
    });
  });
  list();
})();

// The overview's charts. Their newest values stand beside them as text.
"use strict";
(() => {
  const box = document.getElementById("charts");
  if (!box || !window.uPlot) return;
  const AGE_MS = 14000;
  const HEIGHT = 150;
  let drawn = [];
  let data = null;
  let askedMs = -Infinity;

  function colour(name) {
    const probe = document.createElement("span");
    probe.className = "probe " + name;
    box.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function rough(value) {
    if (value >= 1e6) return +(value / 1e6).toPrecision(3) + " M";
    if (value >= 1e3) return +(value / 1e3).toPrecision(3) + " k";
    return value >= 100 ? value.toFixed(0) : String(+value.toPrecision(3));
  }

  // With seconds where the ticks are less than a minute apart.
  function clocks(ticks) {
    const end = ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 19 : 16;
    return ticks.map((at) => new Date(at * 1000).toISOString().slice(11, end));
  }

  function options(figure, series) {
    const unit = figure.dataset.unit;
    const soft = colour("soft");
    const grid = { stroke: colour("grid"), width: 1 };
    const shown = (_, value) => value === null || value === undefined ? "–" : rough(value) + " " + unit;
    return {
      width: figure.querySelector(".plot").clientWidth, height: HEIGHT, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      cursor: { sync: { key: "overview" }, points: { size: 6 } },
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, figure.dataset.most ? +figure.dataset.most : Math.max(high * 1.1, 0.001)] } },
      axes: [
        { stroke: soft, grid: { show: false }, ticks: grid, size: 28, font: "12px system-ui", values: (_, at) => clocks(at) },
        { stroke: soft, grid, ticks: { show: false }, size: 52, font: "12px system-ui", values: (_, at) => at.map(rough) },
      ],
      series: [{}, ...series.map((name, place) => ({ label: name, stroke: colour(place ? "second" : "first"), width: 1.75, spanGaps: false, value: shown, points: { show: false } }))],
    };
  }

  function draw() {
    for (const chart of drawn) chart.destroy();
    drawn = [];
    for (const figure of box.querySelectorAll("[data-series]")) {
      const place = figure.querySelector(".plot");
      place.replaceChildren();
      const series = figure.dataset.series.split(" ");
      const values = series.map((name) => data[name]);
      const isEmpty = !values.some((column) => column.some((value) => value !== null));
      figure.classList.toggle("is-empty", isEmpty);
      if (!isEmpty) drawn.push(new uPlot(options(place.parentElement, series), [data.at, ...values], place));
    }
  }

  async function load() {
    const now = performance.now();
    if (now - askedMs < AGE_MS || document.hidden) return;
    askedMs = now;
    try {
      const answer = await fetch(box.dataset.from, { headers: { "Page-Live": "1" } });
      if (!answer.ok) return;
      data = await answer.json();
      draw();
    } catch { /* the page says that it is not up to date */ }
  }

  document.addEventListener("page:changed", load);
  window.addEventListener("page:theme", () => data && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw());
  let resizing = null;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => data && draw(), 150); });
  load();
})();

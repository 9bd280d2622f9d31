// What a page does by itself: theme, menu, keys and curves. Everything else comes from the server as HTML.
"use strict";

const root = document.documentElement;
const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
if (stored()) root.dataset.theme = stored();

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-do]");
  if (!target) return;
  if (target.dataset.do === "theme") {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a private window keeps nothing */ }
    drawAll(true);
  } else if (target.dataset.do === "menu") {
    document.getElementById("side").classList.toggle("open");
  } else if (target.dataset.do === "pause") {
    const sse = document.getElementById("live")._htmx?.sse;
    if (!sse) { location.reload(); return; }
    sse.config.reconnect = false;
    (sse.reader ?? { cancel() {} }).cancel();
    target.textContent = "Go on";
  } else if (target.dataset.do === "all") {
    target.closest("form").querySelectorAll("tbody input[type=checkbox]").forEach((box) => { box.checked = target.checked; });
  } else if (target.dataset.do === "copy") {
    navigator.clipboard.writeText(document.getElementById(target.dataset.of).textContent);
    target.textContent = "Copied";
  }
});

document.addEventListener("change", (event) => {
  if (event.target.dataset.submit) event.target.form.requestSubmit();
});

// A change is previewed while its form is filled in. The preview before can't be applied any more.
let pause;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-previews]");
  if (!form) return;
  document.querySelectorAll("#outcome button").forEach((button) => { button.disabled = true; });
  clearTimeout(pause);
  pause = setTimeout(() => { if (form.checkValidity()) form.dispatchEvent(new Event("complete")); }, 400);
});

// Keys: / goes to the search, g and a letter to a page.
const PAGES = { o: "/", t: "/topics", g: "/groups", b: "/brokers", d: "/dead-letters", f: "/find" };
let wasG = false;
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    (document.querySelector("main input[type=search]") || document.querySelector("input[type=search]")).focus();
  } else if (wasG && PAGES[event.key]) {
    location.href = document.body.dataset.base + PAGES[event.key];
  }
  wasG = event.key === "g" && !wasG;
});

// Curves: the element's `data-curve` has titles, units and columns; a new value of it moves the curve.
const curves = new Map();
const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const clock = (seconds, withSeconds) => new Date(seconds * 1000).toTimeString().slice(0, withSeconds ? 8 : 5);

const day = (seconds) => new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });

function tip(element, titles) {
  const box = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  element.append(box);
  return (plot) => {
    const { idx, left } = plot.cursor;
    box.hidden = idx == null || left < 0;
    if (box.hidden) return;
    const values = titles.map((title, at) => {
      const value = plot.data[at + 1][idx];
      return `${title} ${value == null ? "–" : compact.format(value)}`;
    });
    box.textContent = [clock(plot.data[0][idx], true), ...values].join("  ·  ");
    box.style.left = `${Math.min(left + 60, element.clientWidth - box.offsetWidth)}px`;
    box.style.top = "0";
  };
}

function draw(element) {
  const { titles, columns } = JSON.parse(element.dataset.curve);
  const known = curves.get(element);
  if (known) { known.setData(columns); return; }
  const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const series = titles.map((title, at) => ({ label: title, stroke: color(`--line${at + 1}`), width: 1.6, points: { show: false } }));
  element.style.position = "relative";
  curves.set(element, new uPlot({
    width: element.clientWidth, height: 170, series: [{}, ...series], legend: { show: false }, cursor: { y: false },
    axes: [
      { ...axis, size: 30, values: (_, values, __, ___, step) => values.map((value) => (step < 43200 ? clock(value, step < 60) : day(value))) },
      { ...axis, size: 56, values: (_, values) => values.map((value) => compact.format(value)) },
    ],
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    hooks: { setCursor: [tip(element, titles)] },
  }, columns, element));
}

function drawAll(anew = false) {
  for (const [element, curve] of curves) {
    if (anew || !element.isConnected) { curve.destroy(); curves.delete(element); }
  }
  document.querySelectorAll("[data-curve]").forEach(draw);
}

addEventListener("resize", () => { for (const [element, curve] of curves) curve.setSize({ width: element.clientWidth, height: 170 }); });
document.addEventListener("htmx:after:swap", () => drawAll());
document.addEventListener("htmx:sse:after:message", () => drawAll());
drawAll();

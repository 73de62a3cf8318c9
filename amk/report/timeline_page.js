"use strict";
// Draws the timeline of the data block: tracks by group, spans, arrows, series. Only text nodes carry names.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { spans, arrows, series, texts, tracks, kinds } = data;
  const canvas = document.getElementById("canvas"), pen = canvas.getContext("2d");
  const tip = document.getElementById("tip"), panel = document.getElementById("panel");
  const status = document.getElementById("status");
  const GUTTER = 190, RULER = 24, ROW = 20, HEAD = 20, CHART = 46, FONT = "12px system-ui, sans-serif";
  const count = spans.track.length;
  const marked = new Uint8Array(count), markedArrow = new Uint8Array(arrows.source.length);
  for (const i of spans.marked) marked[i] = 1;
  for (const i of arrows.marked) markedArrow[i] = 1;

  // Per track: its spans by start. Per span: arrows that leave and enter.
  const rowsOf = tracks.map(() => []), leaving = new Map(), entering = new Map();
  for (let i = 0; i < count; i++) rowsOf[spans.track[i]].push(i);
  for (const row of rowsOf) row.sort((a, b) => spans.start[a] - spans.start[b] || spans.end[a] - spans.end[b]);
  const add = (map, key, value) => (map.get(key) || map.set(key, []).get(key)).push(value);
  arrows.source.forEach((span, i) => add(leaving, span, i));
  arrows.target.forEach((span, i) => add(entering, span, i));

  let last = 0;
  for (let i = 0; i < count; i++) last = Math.max(last, spans.end[i]);
  for (const s of series) if (s.x.length) last = Math.max(last, s.x[s.x.length - 1]);
  last = last || 1;

  const groups = [];
  tracks.forEach(([name], i) => {
    if (!groups.length || groups[groups.length - 1].name !== name) groups.push({ name, first: i, open: true, size: 0 });
    groups[groups.length - 1].size++;
  });
  const state = { from: 0, to: last, scroll: 0, hidden: new Set(), arrows: true, chosen: -1, hover: -1, found: null };
  let layout = [], height = 0, width = 0, tall = 0, colour = {};

  function place() {
    layout = [];
    let y = 0;
    for (const s of series) { layout.push({ series: s, y, h: CHART }); y += CHART; }
    for (const group of groups) {
      layout.push({ group, y, h: HEAD });
      y += HEAD;
      if (group.open) for (let t = group.first; t < group.first + group.size; t++, y += ROW) layout.push({ track: t, y, h: ROW });
    }
    height = y;
    top_ = tracks.map(() => -1);
    for (const line of layout) if (line.track !== undefined) top_[line.track] = line.y;
    for (const group of groups) if (!group.open) {
      const y0 = layout.find((line) => line.group === group).y;
      for (let t = group.first; t < group.first + group.size; t++) top_[t] = y0;
    }
  }
  let top_ = [];
  const x = (time) => GUTTER + ((time - state.from) / (state.to - state.from)) * (width - GUTTER);
  const timeAt = (px) => state.from + ((px - GUTTER) / (width - GUTTER)) * (state.to - state.from);
  const yOf = (track) => RULER + top_[track] - state.scroll;

  function theme() {
    const style = getComputedStyle(document.documentElement);
    colour = {};
    for (const name of ["back", "ink", "soft", "line", "band", "mark", ...kinds]) colour[name] = style.getPropertyValue("--" + name).trim();
  }

  function firstVisible(row) {
    let low = 0, high = row.length;
    while (low < high) { const mid = (low + high) >> 1; if (spans.end[row[mid]] < state.from) low = mid + 1; else high = mid; }
    return low;
  }

  function drawRow(track, y, h) {
    const row = rowsOf[track];
    let filled = -1, kindThere = -1;
    for (let k = firstVisible(row); k < row.length && spans.start[row[k]] <= state.to; k++) {
      const i = row[k], kind = kinds[spans.kind[i]];
      if (state.hidden.has(kind)) continue;
      const left = Math.max(x(spans.start[i]), GUTTER), right = Math.min(x(spans.end[i]), width);
      const wide = Math.max(right - left, 1);
      if (right <= filled && spans.kind[i] === kindThere && !marked[i]) continue;
      const faded = state.found && !state.found.has(i) && !marked[i];
      pen.globalAlpha = faded ? 0.18 : 1;
      pen.fillStyle = colour[kind];
      pen.fillRect(left, y + 2, wide > 3 ? wide - 0.7 : wide, h - 4);
      if (marked[i]) {
        pen.strokeStyle = colour.mark; pen.lineWidth = 2.5;
        pen.strokeRect(left - 1, y + 1, wide + 2, h - 2);
      } else if (i === state.chosen || i === state.hover) {
        pen.strokeStyle = colour.ink; pen.lineWidth = 1.5; pen.strokeRect(left, y + 2, wide, h - 4);
      }
      if (wide > 34 && h > 12) {
        pen.save(); pen.beginPath(); pen.rect(left, y, wide - 4, h); pen.clip();
        pen.fillStyle = "#fff"; pen.fillText(texts[spans.name[i]], left + 4, y + h / 2); pen.restore();
      }
      filled = left + wide; kindThere = spans.kind[i];
    }
    pen.globalAlpha = 1;
  }

  function drawSeries(line, y) {
    const { series: s, h } = line;
    let most = 0;
    for (const v of s.y) most = Math.max(most, v);
    pen.fillStyle = colour.weights; pen.globalAlpha = 0.55; pen.beginPath(); pen.moveTo(GUTTER, y + h - 2);
    for (let i = 0; i < s.x.length; i++) {
      const a = Math.max(x(s.x[i]), GUTTER), b = Math.min(i + 1 < s.x.length ? x(s.x[i + 1]) : x(last), width);
      if (b < GUTTER || a > width) continue;
      const top = y + h - 2 - (most ? (s.y[i] / most) * (h - 8) : 0);
      pen.lineTo(a, top); pen.lineTo(Math.max(a, b), top);
    }
    pen.lineTo(width, y + h - 2); pen.fill(); pen.globalAlpha = 1;
    label(s.name, y + 13, false); label(`max ${number(most)} ${s.unit}`, y + 29, false, colour.soft);
  }

  function label(text, y, bold, ink) {
    pen.save(); pen.beginPath(); pen.rect(0, y - 12, GUTTER - 6, 24); pen.clip();
    pen.fillStyle = ink || colour.ink; pen.font = (bold ? "600 " : "") + FONT; pen.fillText(text, bold ? 8 : 20, y);
    pen.restore(); pen.font = FONT;
  }

  function drawArrow(i, strong) {
    const a = arrows.source[i], b = arrows.target[i];
    const x1 = x(spans.end[a]), x2 = x(Math.max(spans.start[b], Math.min(spans.end[b], spans.end[a])));
    if ((x1 < GUTTER && x2 < GUTTER) || (x1 > width && x2 > width)) return;
    const y1 = yOf(spans.track[a]) + ROW / 2, y2 = yOf(spans.track[b]) + ROW / 2;
    if ((y1 < RULER && y2 < RULER) || (y1 > tall && y2 > tall)) return;
    pen.strokeStyle = pen.fillStyle = markedArrow[i] ? colour.mark : strong ? colour.ink : colour.signal;
    pen.globalAlpha = markedArrow[i] || strong ? 0.95 : 0.5; pen.lineWidth = markedArrow[i] ? 2.5 : strong ? 1.8 : 1;
    const bend = Math.min(Math.max(6, Math.abs(x2 - x1) / 2), 60);
    pen.beginPath(); pen.moveTo(x1, y1); pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2); pen.stroke();
    pen.beginPath(); pen.moveTo(x2, y2); pen.lineTo(x2 - 7, y2 - 3.5); pen.lineTo(x2 - 7, y2 + 3.5); pen.fill();
    pen.globalAlpha = 1;
  }

  function drawArrows() {
    if (!state.arrows) return;
    const focus = state.chosen >= 0 ? state.chosen : state.hover;
    const close = new Set([...(leaving.get(focus) || []), ...(entering.get(focus) || [])]);
    const seen = [];
    for (let i = 0; i < arrows.source.length; i++) {
      const low = spans.end[arrows.source[i]], high = spans.end[arrows.target[i]];
      if (low <= state.to && high >= state.from && !close.has(i) && !markedArrow[i]) seen.push(i);
    }
    if (seen.length <= 600) for (const i of seen) drawArrow(i, false);
    arrows.marked.forEach((i) => drawArrow(i, false));
    close.forEach((i) => drawArrow(i, true));
    return seen.length;
  }

  function drawRuler() {
    pen.fillStyle = colour.back; pen.fillRect(0, 0, width, RULER);
    const rough = (state.to - state.from) / Math.max((width - GUTTER) / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
    pen.strokeStyle = colour.line; pen.lineWidth = 1; pen.fillStyle = colour.soft;
    for (let t = Math.ceil(state.from / step) * step; t <= state.to; t += step) {
      const px = x(t);
      pen.beginPath(); pen.moveTo(px, RULER - 6); pen.lineTo(px, tall); pen.stroke();
      pen.fillText(number(t), px + 3, 11);
    }
    pen.fillText(data.unit, 8, 11);
    pen.fillStyle = colour.mark;
    for (const i of spans.marked) { const px = x(spans.start[i]); if (px >= GUTTER && px <= width) { pen.beginPath(); pen.moveTo(px - 5, RULER - 9); pen.lineTo(px + 5, RULER - 9); pen.lineTo(px, RULER - 1); pen.fill(); } }
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth; tall = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(tall * ratio)) canvas.height = Math.round(tall * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    state.scroll = Math.min(Math.max(state.scroll, 0), Math.max(height + RULER - tall, 0));
    pen.font = FONT; pen.textBaseline = "middle"; pen.fillStyle = colour.back; pen.fillRect(0, 0, width, tall);
    drawRuler();
    pen.save(); pen.beginPath(); pen.rect(0, RULER, width, tall - RULER); pen.clip();
    for (const line of layout) {
      const y = RULER + line.y - state.scroll;
      if (y + line.h < RULER || y > tall) continue;
      if (line.group) {
        pen.fillStyle = colour.band; pen.fillRect(0, y, width, line.h);
        label((line.group.open ? "\u25be " : "\u25b8 ") + line.group.name, y + line.h / 2, true);
        if (!line.group.open) for (let t = line.group.first; t < line.group.first + line.group.size; t++) drawRow(t, y, line.h);
      } else if (line.series) drawSeries(line, y);
      else { label(tracks[line.track][1], y + line.h / 2, false); drawRow(line.track, y, line.h); }
    }
    pen.save(); pen.beginPath(); pen.rect(GUTTER, RULER, width - GUTTER, tall - RULER); pen.clip();
    const many = drawArrows();
    pen.restore(); pen.restore();
    pen.strokeStyle = colour.line; pen.lineWidth = 1; pen.beginPath(); pen.moveTo(GUTTER - 0.5, 0); pen.lineTo(GUTTER - 0.5, tall); pen.stroke();
    const thick = many > 600 ? ` \u00b7 ${many} arrows in view: zoom in, or point at a span` : "";
    status.textContent = `${number(state.from)} to ${number(Math.min(state.to, last))} of ${number(last)} ${data.unit} \u00b7 drag: pan, ctrl+wheel or W/S: zoom, A/D: move, shift+drag: zoom to range, double click: zoom to span, F: all${spans.marked.length ? ", M: next " + data.mark : ""}${thick}`;
  }
  let queued = false;
  const redraw = () => { if (!queued) { queued = true; requestAnimationFrame(() => { queued = false; draw(); }); } };

  const number = (v) => (Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(4))));
  function spanAt(px, py) {
    const y = py - RULER + state.scroll, line = layout.find((l) => y >= l.y && y < l.y + l.h);
    if (px < GUTTER || py < RULER || !line || line.track === undefined) return -1;
    const row = rowsOf[line.track], time = timeAt(px), slack = 3 * (state.to - state.from) / (width - GUTTER);
    let best = -1, distance = slack;
    for (let k = Math.max(firstVisible(row) - 1, 0); k < row.length && spans.start[row[k]] <= time + slack; k++) {
      const i = row[k], away = Math.max(spans.start[i] - time, time - spans.end[i], 0);
      if (!state.hidden.has(kinds[spans.kind[i]]) && (away < distance || (away === 0 && distance === 0))) { best = i; distance = away; }
    }
    return best;
  }
  const where = (i) => tracks[spans.track[i]].join(" \u00b7 ");
  function describe(i) {
    const length = spans.end[i] - spans.start[i], lines = [kinds[spans.kind[i]] + (marked[i] ? ", " + data.mark : "") + "   " + where(i)];
    lines.push(`${number(spans.start[i])} to ${number(spans.end[i])} ${data.unit}, ${number(length)} long`);
    if (texts[spans.detail[i]]) lines.push(texts[spans.detail[i]].split("; ").join("\n"));
    return lines.join("\n");
  }
  const element = (tag, text, parent) => { const e = document.createElement(tag); e.textContent = text; if (parent) parent.append(e); return e; };
  function fill(box, i) {
    box.textContent = "";
    element("b", texts[spans.name[i]], box);
    box.append("\n" + describe(i));
  }
  function choose(i) {
    state.chosen = i;
    panel.textContent = "";
    if (i >= 0) {
      fill(panel, i);
      for (const [head, list, end] of [["released by", entering.get(i), "source"], ["releases", leaving.get(i), "target"]]) {
        for (const arrow of (list || []).slice(0, 40)) {
          const other = arrows[end][arrow];
          panel.append(`\n${head} `);
          element("a", `${texts[spans.name[other]]} on ${where(other)}`, panel).onclick = () => { show(other); choose(other); };
          if (texts[arrows.name[arrow]]) panel.append("  (" + texts[arrows.name[arrow]] + ")");
        }
      }
    }
    redraw();
  }
  function range(from, to) {
    const size = Math.min(Math.max(to - from, last * 1e-6), last * 1.04);
    const start = Math.min(Math.max(from, -last * 0.02), last * 1.02 - size);
    state.from = start; state.to = start + size; redraw();
  }
  function zoom(factor, at) { range(at - (at - state.from) * factor, at + (state.to - at) * factor); }
  function show(i) {
    const group = groups.find((g) => spans.track[i] >= g.first && spans.track[i] < g.first + g.size);
    if (!group.open) { group.open = true; place(); }
    const middle = (spans.start[i] + spans.end[i]) / 2, size = state.to - state.from;
    if (spans.start[i] < state.from || spans.end[i] > state.to) range(middle - size / 2, middle + size / 2);
    const y = top_[spans.track[i]];
    if (y < state.scroll || y > state.scroll + tall - RULER - ROW) state.scroll = y - tall / 2;
    redraw();
  }
  let next = 0;
  function mark() { if (spans.marked.length) { const i = spans.marked[next++ % spans.marked.length]; show(i); choose(i); } }
  const fit = () => range(0, last * 1.01);

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, from: state.from, to: state.to, scroll: state.scroll, moved: false, box: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
      drag.moved = drag.moved || Math.abs(dx) + Math.abs(dy) > 3;
      if (drag.moved && !drag.box) {
        const shift = (-dx / (width - GUTTER)) * (drag.to - drag.from);
        state.scroll = drag.scroll - dy; range(drag.from + shift, drag.to + shift);
      }
      return;
    }
    const i = spanAt(event.offsetX, event.offsetY);
    if (i !== state.hover) { state.hover = i; redraw(); }
    tip.hidden = i < 0;
    if (i >= 0) {
      fill(tip, i);
      tip.style.left = Math.min(event.offsetX + 14, Math.max(width - tip.offsetWidth - 8, 0)) + "px";
      tip.style.top = Math.min(event.offsetY + 16, Math.max(tall - tip.offsetHeight - 8, 0)) + "px";
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const from = drag;
    drag = null;
    if (from && from.moved && from.box) range(timeAt(Math.min(from.x, event.offsetX)), timeAt(Math.max(from.x, event.offsetX)));
    if (from && !from.moved) {
      const line = layout.find((l) => l.group && event.offsetY - RULER + state.scroll >= l.y && event.offsetY - RULER + state.scroll < l.y + l.h);
      if (line) { line.group.open = !line.group.open; place(); redraw(); } else choose(spanAt(event.offsetX, event.offsetY));
    }
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; state.hover = -1; redraw(); });
  canvas.addEventListener("dblclick", (event) => {
    const i = spanAt(event.offsetX, event.offsetY);
    if (i >= 0) { const size = Math.max(spans.end[i] - spans.start[i], last * 1e-5); range(spans.start[i] - size * 2, spans.end[i] + size * 2); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { zoom(Math.exp(event.deltaY * 0.0022), timeAt(event.offsetX)); event.preventDefault(); }
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = ((event.deltaX || event.deltaY) / (width - GUTTER)) * (state.to - state.from);
      range(state.from + by, state.to + by); event.preventDefault();
    } else if (height + RULER > tall) { state.scroll += event.deltaY; event.preventDefault(); redraw(); }
  }, { passive: false });
  const keys = {
    w: () => zoom(0.7, (state.from + state.to) / 2), s: () => zoom(1 / 0.7, (state.from + state.to) / 2),
    a: () => range(state.from - (state.to - state.from) / 5, state.to - (state.to - state.from) / 5),
    d: () => range(state.from + (state.to - state.from) / 5, state.to + (state.to - state.from) / 5),
    f: fit, m: mark, escape: () => choose(-1),
  };
  document.addEventListener("keydown", (event) => {
    const action = keys[event.key.toLowerCase()];
    if (action && event.target.tagName !== "INPUT" && !event.ctrlKey && !event.metaKey) { action(); event.preventDefault(); }
  });

  const tools = document.getElementById("tools");
  const button = (text, action, parent = tools) => { const b = element("button", text, parent); b.onclick = () => action(b); return b; };
  const search = document.createElement("input");
  search.placeholder = "find a name"; search.setAttribute("aria-label", "find a name");
  search.oninput = () => {
    const word = search.value.toLowerCase();
    state.found = word ? new Set([...spans.name.keys()].filter((i) => texts[spans.name[i]].toLowerCase().includes(word) || texts[spans.detail[i]].toLowerCase().includes(word))) : null;
    redraw();
  };
  tools.append(search);
  if (spans.marked.length) button(`next ${data.mark}`, mark);
  button("all", fit);
  if (arrows.source.length) button("arrows", (b) => { state.arrows = !state.arrows; b.style.opacity = state.arrows ? 1 : 0.5; redraw(); });
  button("fold", () => { const open = groups.some((g) => g.open); for (const g of groups) g.open = !open; place(); redraw(); });
  const paint = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; theme(); legend(); redraw(); };
  button("dark / light", () => paint(document.documentElement.dataset.theme !== "dark"));
  function legend() {
    const box = document.getElementById("legend");
    box.textContent = "";
    kinds.forEach((kind, k) => {
      if (!spans.kind.includes(k)) return;
      const b = button("", (self) => { state.hidden.has(kind) ? state.hidden.delete(kind) : state.hidden.add(kind); self.classList.toggle("off"); redraw(); }, box);
      element("i", "", b).style.background = colour[kind];
      b.append(kind); if (state.hidden.has(kind)) b.classList.add("off");
    });
    if (spans.marked.length || arrows.marked.length) { const b = element("button", "", box); element("i", "", b).style.border = "2.5px solid " + colour.mark; b.append(data.mark); b.onclick = mark; }
  }

  place();
  paint(matchMedia("(prefers-color-scheme: dark)").matches);
  canvas.style.height = Math.min(Math.max(height + RULER + 4, 320), Math.max(window.innerHeight * 0.66, 320)) + "px";
  fit();
  const asked = new URLSearchParams(location.hash.slice(1)); // #from=..&to=..&span=..
  if (asked.has("from")) range(Number(asked.get("from")), Number(asked.get("to")));
  draw();
  if (asked.has("span") && rowsOf.length) choose(Number(asked.get("span")) % count);
  window.addEventListener("resize", redraw);
})();

// Draws each figure of the page from the JSON embedded in it. It loads nothing.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 420, HEIGHT = 262, LEFT = 42, RIGHT = 12, TOP = 8, BOTTOM = 34;
const DASHES = ["", "6 3", "2 2", "8 3 2 3"];
const escape = text => String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]));
const show = value => value === null ? "none" : Math.abs(value) >= 1000 ? value.toFixed(0) : String(+value.toPrecision(3));
const samples = value => value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M` : value >= 1e3 ? `${+(value / 1e3).toPrecision(3)} k` : show(value);

// Round places for ticks on an axis from `low` to `high`.
function ticks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(f => f * power).find(s => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

// The three panels of a figure, as series over a common axis.
function panels(figure) {
  const arms = figure.arms.map(name => data.arms[name]);
  const byEpoch = arms.every(arm => arm.batch === arms[0].batch);
  const series = (metric, heading) => ({
    heading, metric, xName: byEpoch ? "epochs" : "environment samples", byEpoch,
    limits: metric === "cost" ? [...new Set(arms.flatMap(arm => arm.limits))] : [],
    band: metric === "multiplier" ? data.band : null,
    marks: arms.map((arm, i) => ({arm: i, x: arm.adjustment === null ? null : byEpoch ? arm.adjustment : arm.adjustment * arm.batch})),
    series: arms.flatMap((arm, i) => (arm.curves[metric] || []).map((curve, k) => ({
      arm: i, title: arm.title + (arm.costs.length > 1 && metric !== "return" ? `, ${arm.costs[k]}` : ""), thin: k > 0,
      x: byEpoch ? arm.epochs : arm.epochs.map(epoch => epoch * arm.batch), batch: arm.batch, ...curve}))),
    without: metric === "multiplier" ? arms.filter(arm => !arm.curves.multiplier).map(arm => arm.title) : [],
  });
  const found = [series("return", "return per episode"), series("cost", "cost per episode"), series("multiplier", "multiplier")];
  if (figure.settled) found[2] = {
    heading: "settled cost by fixed multiplier", metric: "cost", xName: "multiplier", limits: [...new Set(arms.flatMap(arm => arm.limits))],
    band: null, across: data.band, marks: [], without: [],
    series: [{arm: null, title: "settled cost", x: figure.settled.grid, ...figure.settled}],
  };
  return found;
}

function colour(figure, arm) { return arm === null ? "var(--ink)" : `var(--c${arm % figure.colours % 7})`; }
function dash(figure, arm) { return arm === null ? "" : DASHES[Math.floor(arm / figure.colours) % DASHES.length]; }

function extent(panel, shown, seeds) {
  const lines = shown.flatMap(s => [s.middle, s.low, s.high, ...(seeds ? s.seeds : [])]);
  const ys = lines.flat().filter(y => y !== null), xs = shown.flatMap(s => s.x);
  ys.push(...panel.limits, ...(panel.band || []));
  if (!xs.length) xs.push(0, 1);
  if (!ys.length) ys.push(0, 1);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (panel.metric !== "return" && low >= 0) low = 0;
  const room = (high - low || 1) * 0.04;
  const left = panel.xName === "multiplier" ? Math.min(...xs) : 0, right = Math.max(...xs);
  const side = panel.xName === "multiplier" ? (right - left || 1) * 0.05 : 0;
  return {left: left - side, right: right + side, low: low === 0 ? 0 : low - room, high: high + room};
}

function path(xs, ys, X, Y) {
  let text = "", pen = false;
  ys.forEach((y, i) => {
    if (y === null) { pen = false; return; }
    text += `${pen ? "L" : "M"}${X(xs[i]).toFixed(1)} ${Y(y).toFixed(1)}`;
    pen = true;
  });
  return text;
}

function area(s, X, Y) {
  const known = s.x.map((x, i) => i).filter(i => s.low[i] !== null && s.high[i] !== null);
  if (!known.length) return "";
  const top = known.map(i => `${X(s.x[i]).toFixed(1)} ${Y(s.high[i]).toFixed(1)}`);
  const bottom = known.reverse().map(i => `${X(s.x[i]).toFixed(1)} ${Y(s.low[i]).toFixed(1)}`);
  return `M${top.join("L")}L${bottom.join("L")}Z`;
}

function draw(figure, panel, state) {
  const shown = panel.series.filter(s => s.arm === null || state.visible[s.arm]);
  const e = extent(panel, shown, state.seeds);
  const X = x => LEFT + (x - e.left) / (e.right - e.left || 1) * (WIDTH - LEFT - RIGHT);
  const Y = y => HEIGHT - BOTTOM - (y - e.low) / (e.high - e.low || 1) * (HEIGHT - TOP - BOTTOM);
  const out = [], labels = [];
  for (const y of ticks(e.low, e.high, 5)) {
    out.push(`<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${Y(y)}" y2="${Y(y)}" stroke="var(--grid)"/>`);
    out.push(`<text x="${LEFT - 6}" y="${Y(y) + 4}" text-anchor="end">${show(y)}</text>`);
  }
  const name = panel.xName === "environment samples" ? samples : show;
  for (const x of ticks(e.left, e.right, 6)) out.push(`<text x="${X(x)}" y="${HEIGHT - BOTTOM + 15}" text-anchor="middle">${name(x)}</text>`);
  out.push(`<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${HEIGHT - BOTTOM}" y2="${HEIGHT - BOTTOM}" stroke="var(--line)"/>`);
  out.push(`<text x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 4}" text-anchor="middle">${panel.xName}</text>`);
  if (data.note.startsWith("MINIATURE")) out.push(`<text class="watermark" x="${(LEFT + WIDTH) / 2}" y="${HEIGHT / 2}" text-anchor="middle">MINIATURE</text>`);
  if (panel.band && panel.band[0] !== null) {
    const top = Y(panel.band[1]), height = Math.max(1.5, Y(panel.band[0]) - top);
    out.push(`<rect class="band" x="${LEFT}" width="${WIDTH - LEFT - RIGHT}" y="${top}" height="${height}" fill="var(--pale)" opacity=".4"/>`);
    labels.push(`<text class="label" x="${WIDTH - RIGHT - 3}" y="${top - 4}" text-anchor="end">λ* ${show(panel.band[0])} to ${show(panel.band[1])}</text>`);
  }
  if (panel.across && panel.across[0] !== null) {
    const left = X(panel.across[0]), width = Math.max(1.5, X(panel.across[1]) - left);
    out.push(`<rect class="band" x="${left}" width="${width}" y="${TOP}" height="${HEIGHT - TOP - BOTTOM}" fill="var(--pale)" opacity=".4"/>`);
    labels.push(`<text class="label" x="${left + width + 4}" y="${TOP + 12}">λ* ${show(panel.across[0])} to ${show(panel.across[1])}</text>`);
  }
  for (const mark of panel.marks) if (mark.x !== null && state.visible[mark.arm] && mark.x <= e.right)
    out.push(`<line class="mark" x1="${X(mark.x)}" x2="${X(mark.x)}" y1="${TOP}" y2="${HEIGHT - BOTTOM}" stroke="${colour(figure, mark.arm)}" stroke-dasharray="1 3"/>`);
  for (const s of shown) {
    const stroke = `fill="none" stroke="${colour(figure, s.arm)}" stroke-dasharray="${dash(figure, s.arm)}"`;
    if (state.seeds && s.seeds.length > 1) for (const seed of s.seeds)
      out.push(`<path class="seed" d="${path(s.x, seed, X, Y)}" ${stroke} stroke-width=".7" opacity=".22"/>`);
    out.push(`<path class="interval" d="${area(s, X, Y)}" fill="${colour(figure, s.arm)}" opacity=".17"/>`);
  }
  for (const s of shown) {
    out.push(`<path class="middle" data-arm="${s.arm}" d="${path(s.x, s.middle, X, Y)}" fill="none" stroke="${colour(figure, s.arm)}" stroke-width="${s.thin ? 1.2 : 2}" stroke-dasharray="${dash(figure, s.arm)}" stroke-linejoin="round"/>`);
    if (s.x.length <= 12) s.x.forEach((x, i) => { if (s.middle[i] !== null) out.push(`<circle cx="${X(x)}" cy="${Y(s.middle[i])}" r="3" fill="${colour(figure, s.arm)}"/>`); });
  }
  for (const limit of panel.limits) {
    out.push(`<line class="limit" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${Y(limit)}" y2="${Y(limit)}" stroke="var(--ink)" stroke-dasharray="5 3"/>`);
    labels.push(`<text class="label" x="${LEFT + 4}" y="${Y(limit) - 4}">limit ${show(limit)}</text>`);
  }
  if (!shown.length) out.push(`<text x="${(LEFT + WIDTH) / 2}" y="${HEIGHT / 2 + 24}" text-anchor="middle">nothing to show</text>`);
  out.push(...labels, `<g class="cursor"></g>`);
  panel.svg.innerHTML = out.join("");
  panel.view = {X, Y, e, shown};
}

// The values under the pointer.
function point(figure, panel, event) {
  const box = panel.svg.getBoundingClientRect(), {X, Y, e, shown} = panel.view;
  const at = e.left + ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (e.right - e.left);
  const found = shown.map(s => {
    let i = 0;
    s.x.forEach((x, k) => { if (Math.abs(x - at) < Math.abs(s.x[i] - at)) i = k; });
    return {s, i, y: s.middle[i]};
  }).filter(f => f.y !== null && f.s.x[f.i] !== undefined).sort((a, b) => b.y - a.y);
  if (!found.length) { leave(panel); return; }
  const nearest = found.reduce((a, b) => Math.abs(a.s.x[a.i] - at) <= Math.abs(b.s.x[b.i] - at) ? a : b);
  const x = nearest.s.x[nearest.i];
  const kept = found.filter(f => Math.abs(f.s.x[f.i] - x) <= (e.right - e.left) / 60);
  const place = X(x);
  panel.svg.querySelector(".cursor").innerHTML = `<line x1="${place}" x2="${place}" y1="${TOP}" y2="${HEIGHT - BOTTOM}" stroke="var(--pale)"/>` +
    kept.map(f => `<circle cx="${X(f.s.x[f.i])}" cy="${Y(f.y)}" r="3.5" fill="${colour(figure, f.s.arm)}" stroke="var(--paper)"/>`).join("");
  const head = panel.xName === "epochs" ? `after ${x} epochs <small>${samples(x * nearest.s.batch)} samples</small>` : panel.xName === "multiplier" ? `multiplier ${show(x)}` : `${samples(x)} samples`;
  panel.tip.innerHTML = `<b>${head}</b>` + kept.map(f => {
    const low = f.s.low[f.i], high = f.s.high[f.i];
    const interval = low === null || high === null ? "" : ` <small>[${show(low)}, ${show(high)}]</small>`;
    return `<div><i style="background:${colour(figure, f.s.arm)}"></i>${escape(f.s.title)} <b style="display:inline">${show(f.y)}</b>${interval}</div>`;
  }).join("");
  panel.tip.hidden = false;
  const left = place / WIDTH * box.width, wide = panel.tip.offsetWidth;
  panel.tip.style.left = `${Math.max(0, Math.min(left > box.width / 2 ? left - wide - 12 : left + 12, box.width - wide))}px`;
}

function leave(panel) {
  panel.tip.hidden = true;
  panel.svg.querySelector(".cursor").innerHTML = "";
}

function button(content, pressed, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.innerHTML = content;
  made.setAttribute("aria-pressed", pressed);
  made.addEventListener("click", () => made.setAttribute("aria-pressed", act()));
  return made;
}

for (const figure of data.figures) {
  const section = document.querySelector(`[data-figure="${figure.name}"]`);
  const state = {visible: figure.arms.map(() => true), seeds: true};
  const made = panels(figure);
  const redraw = () => made.forEach(panel => { draw(figure, panel, state); panel.tip.hidden = true; });
  for (const panel of made) {
    const box = document.createElement("div");
    box.className = "panel";
    const aside = panel.without.length ? ` <small style="font-weight:400;color:var(--pale)">(none: ${escape(panel.without.join(", "))})</small>` : "";
    box.innerHTML = `<h3>${panel.heading}${aside}</h3><svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${panel.heading}"></svg><div class="tip" hidden></div>`;
    panel.svg = box.querySelector("svg");
    panel.tip = box.querySelector(".tip");
    panel.svg.addEventListener("pointermove", event => point(figure, panel, event));
    panel.svg.addEventListener("pointerdown", event => point(figure, panel, event));
    panel.svg.addEventListener("pointerleave", () => leave(panel));
    section.querySelector(".panels").append(box);
  }
  const legend = section.querySelector(".legend");
  figure.arms.forEach((name, i) => legend.append(button(
    `<svg viewBox="0 0 26 10"><line x1="0" x2="26" y1="5" y2="5" stroke="${colour(figure, i)}" stroke-width="3" stroke-dasharray="${dash(figure, i)}"/></svg>${escape(data.arms[name].title)}`,
    true, () => { state.visible[i] = !state.visible[i]; redraw(); return state.visible[i]; })));
  const seeds = button("each seed", true, () => { state.seeds = !state.seeds; redraw(); return state.seeds; });
  seeds.className = "seeds";
  legend.append(seeds);
  redraw();
}
})();

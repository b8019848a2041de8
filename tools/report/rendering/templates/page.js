"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const words = data.words;
  const ROW = 30; // height of a row of the jobs, as in the style sheet
  const PRINTED = 100; // rows of the jobs on paper

  // ---- words and numbers ----------------------------------------------------------------------
  const plain = (value, digits = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  function duration(seconds) {
    if (seconds === null) return "–";
    if (seconds < 0) return "-" + duration(-seconds);
    if (seconds < 60) return (seconds < 10 ? +seconds.toFixed(1) : Math.round(seconds)) + " s";
    const minutes = Math.round(seconds / 60);
    if (minutes < 60) {
      const rest = Math.round(seconds - 60 * Math.floor(seconds / 60));
      return minutes < 10 && rest && rest < 60 ? `${Math.floor(seconds / 60)} min ${rest} s` : minutes + " min";
    }
    const hours = Math.floor(minutes / 60);
    if (hours < 48) return `${hours} h` + (minutes % 60 ? ` ${minutes % 60} min` : "");
    return `${Math.floor(hours / 24)} d` + (hours % 24 ? ` ${hours % 24} h` : "");
  }

  // ---- runs, decoded when first needed -------------------------------------------------------
  // A block is a stretch of one job: from, to (ticks), GPUs, batch, stall, and the rows that it fills.
  function blocksOf(run) {
    if (run.blocks) return run.blocks;
    const blocks = [];
    const held = run.held;
    run.first = new Int32Array(run.submit.length + 1); // the first block of each job
    for (let at = 0, job = 0; job < run.submit.length; job++) {
      run.first[job] = blocks.length;
      let time = run.submit[job];
      for (let left = held[at++]; left > 0; left--, at += 5) {
        const from = time + held[at];
        time = from + held[at + 1];
        blocks.push({ job, from, to: time, gpus: held[at + 2], batch: words[held[at + 3]], stall: held[at + 4] });
      }
    }
    run.first[run.submit.length] = blocks.length;
    placeRows(run, blocks);
    return (run.blocks = blocks);
  }

  // A job keeps its rows where it can, else takes the lowest free ones: rows are not the GPUs themselves.
  function placeRows(run, blocks) {
    const most = Math.max(1, Math.ceil(run.gpus));
    let busy = new Float64Array(most).fill(-Infinity);
    const before = new Map();
    for (const block of [...blocks].sort((a, b) => a.from - b.from || a.job - b.job)) {
      const wanted = Math.max(1, Math.round(block.gpus));
      const rows = [];
      for (const row of before.get(block.job) || [])
        if (rows.length < wanted && busy[row] <= block.from) rows.push(row), (busy[row] = block.to);
      for (let row = 0; rows.length < wanted; row++) {
        if (row === busy.length) {
          if (row >= 4 * most) break;
          const more = new Float64Array(2 * row).fill(-Infinity);
          more.set(busy);
          busy = more;
        }
        if (busy[row] <= block.from) rows.push(row), (busy[row] = block.to);
      }
      rows.sort((a, b) => a - b);
      before.set(block.job, rows);
      block.bands = []; // [first, last) of rows beside each other
      for (const row of rows) {
        const last = block.bands[block.bands.length - 1];
        if (last && last[1] === row) last[1] = row + 1;
        else block.bands.push([row, row + 1]);
      }
    }
    run.rows = most;
    for (const block of blocks) for (const band of block.bands) run.rows = Math.max(run.rows, band[1]);
  }

  const traceOf = (run) => data.traces[run.trace];
  const nameOf = (run, job) => traceOf(run).id[job];

  // ---- the chart of allocations --------------------------------------------------------------
  const canvas = byId("canvas");
  const view = { run: data.runs[0], from: 0, to: 1, rows: 0, at: null, drag: null };

  function whole() {
    view.from = 0;
    view.to = Math.max(1, view.run.end);
    draw();
  }

  function zoom(factor, middle = (view.from + view.to) / 2) {
    const width = Math.min(Math.max((view.to - view.from) * factor, view.run.end / 1e5, 2), view.run.end || 1);
    const part = (middle - view.from) / (view.to - view.from);
    view.from = Math.min(Math.max(0, middle - part * width), Math.max(0, view.run.end - width));
    view.to = view.from + width;
    draw();
  }

  const place = { left: 44, right: 6, top: 8, bottom: 26 };
  const inner = () => ({
    width: canvas.clientWidth - place.left - place.right,
    height: canvas.clientHeight - place.top - place.bottom,
  });
  const toX = (time, width = inner().width) => place.left + ((time - view.from) / (view.to - view.from)) * width;
  const toTime = (x) => view.from + ((x - place.left) / inner().width) * (view.to - view.from);

  function colouring() {
    const trace = traceOf(view.run);
    const by = byId("colouring").value;
    const indices = by === "job" ? null : trace[by] || trace.model;
    return (block) => data.colours[(indices ? indices[block.job] : block.job) % data.colours.length];
  }

  let waiting = false;
  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      paint();
    });
  }

  function paint() {
    const scale = window.devicePixelRatio || 1;
    const { width, height } = inner();
    if (width <= 0) return;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const [ink, rule, soft] = ["--ink", "--rule", "--soft"].map((name) => style.getPropertyValue(name).trim());
    pen.scale(scale, scale);
    const blocks = blocksOf(view.run);
    view.rows = rowsInSight(blocks);
    const rowHeight = height / view.rows;
    axes(pen, width, height, rule, soft);
    pen.save();
    pen.beginPath();
    pen.rect(place.left, place.top, width, height);
    pen.clip();
    const bottom = place.top + height;
    const colourOf = colouring();
    for (const block of blocks) { // up to 100,000: they ask the document for nothing
      if (block.to < view.from || block.from > view.to) continue;
      const x = toX(block.from, width);
      const wide = Math.max(0.4, toX(block.to, width) - x);
      pen.fillStyle = colourOf(block);
      const gap = wide > 4 ? 1 : 0;
      for (const [low, high] of block.bands) {
        const tall = (high - low) * rowHeight;
        pen.fillRect(x, bottom - high * rowHeight, wide - gap, tall - (tall > 4 ? 1 : 0));
      }
      const stalled = toX(block.from + block.stall, width) - x;
      if (stalled > 1) {
        pen.fillStyle = "rgba(0,0,0,.45)";
        for (const [low, high] of block.bands)
          pen.fillRect(x, bottom - high * rowHeight, Math.min(stalled, wide), (high - low) * rowHeight);
      }
    }
    if (view.at) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      const own = view.at.job;
      for (let index = view.run.first[own]; index < view.run.first[own + 1]; index++) {
        const block = blocks[index];
        for (const [low, high] of block.bands)
          pen.strokeRect(toX(block.from), bottom - high * rowHeight, Math.max(1, toX(block.to) - toX(block.from)), (high - low) * rowHeight);
      }
    }
    if (view.drag && Math.abs(view.drag.to - view.drag.from) > 4) {
      pen.fillStyle = "rgba(0,114,178,.25)";
      pen.fillRect(view.drag.from, place.top, view.drag.to - view.drag.from, height);
    }
    pen.restore();
  }

  // Of the whole run all rows; closer up, those that are in use there.
  function rowsInSight(blocks) {
    if (view.from <= 0 && view.to >= view.run.end) return view.run.rows;
    let rows = 4;
    for (const block of blocks) {
      if (block.to < view.from || block.from > view.to) continue;
      for (const band of block.bands) rows = Math.max(rows, band[1]);
    }
    return Math.min(rows, view.run.rows);
  }

  function axes(pen, width, height, rule, soft) {
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    pen.font = "12px system-ui, sans-serif";
    pen.strokeStyle = rule;
    pen.fillStyle = soft;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const gpus = round(view.rows / 4) || 1;
    for (let value = 0; value <= view.rows; value += Math.max(1, gpus)) {
      const y = place.top + height - (value / view.rows) * height;
      line(pen, place.left, y, place.left + width, y);
      pen.fillText(plain(value), place.left - 5, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const tick = view.run.tick;
    const step = timeStep((view.to - view.from) * tick, Math.max(2, Math.floor(width / 110)));
    for (let time = Math.ceil((view.from * tick) / step) * step; time <= view.to * tick; time += step) {
      const x = toX(time / tick);
      line(pen, x, place.top, x, place.top + height);
      if (x > place.left + 20 && x < place.left + width - 24) pen.fillText(duration(time), x, place.top + height + 7);
    }
  }

  function line(pen, x, y, toXEnd, toYEnd) {
    pen.beginPath();
    pen.moveTo(Math.round(x) + 0.5, Math.round(y) + 0.5);
    pen.lineTo(Math.round(toXEnd) + 0.5, Math.round(toYEnd) + 0.5);
    pen.stroke();
  }

  function round(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= value);
  }

  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  function timeStep(seconds, most) {
    const wanted = seconds / most;
    if (wanted < 1) return round(wanted) || 1e-3;
    return STEPS.find((step) => step >= wanted) || 86400 * round(wanted / 86400);
  }

  function blockAt(x, y) {
    const { height } = inner();
    const time = toTime(x);
    const slack = (view.to - view.from) / inner().width;
    const row = ((place.top + height - y) / height) * (view.rows || view.run.rows);
    let near = null;
    for (const block of blocksOf(view.run)) {
      if (block.from > time + slack || block.to < time - slack) continue;
      if (!block.bands.some(([low, high]) => low <= row && row < high)) continue;
      if (block.from <= time && time < block.to) return block;
      near = block;
    }
    return near;
  }

  function show(block, scroll = false) {
    view.at = block;
    if (block) {
      if (scroll && (block.to < view.from || block.from > view.to)) {
        const half = (view.to - view.from) / 2;
        const middle = (block.from + block.to) / 2;
        view.from = Math.max(0, middle - half);
        view.to = view.from + 2 * half;
      }
      byId("seen").textContent = described(block);
    }
    draw();
  }

  function described(block) {
    const run = view.run;
    const time = (ticks) => duration(ticks * run.tick);
    const trace = traceOf(run);
    const user = trace.user && words[trace.user[block.job]];
    const about = [words[trace.model[block.job]], user].filter(Boolean).join(", ");
    const batch = block.batch ? `, batch ${block.batch}` : "";
    const stall = block.stall ? `, stall ${time(block.stall)}` : ", no stall";
    const slots = block.gpus === 1 ? run.slots.slice(0, -1) : run.slots;
    const gpus = `${plain(block.gpus, Number.isInteger(block.gpus) ? 0 : 1)} ${slots}`;
    return `${nameOf(run, block.job)} (${about}): ${gpus}${batch}${stall}; from ${time(block.from)} to ${time(block.to)}, ${time(block.to - block.from)}`;
  }

  function step(key) {
    const blocks = blocksOf(view.run);
    if (!blocks.length) return;
    const index = view.at ? blocks.indexOf(view.at) : -1;
    if (index < 0) return show(blocks[0], true);
    const { first } = view.run;
    const job = view.at.job;
    if (key === "ArrowLeft") show(blocks[Math.max(first[job], index - 1)], true);
    if (key === "ArrowRight") show(blocks[Math.min(first[job + 1] - 1, index + 1)], true);
    if (key === "ArrowUp" && first[job] > 0) show(blocks[first[blocks[first[job] - 1].job]], true);
    if (key === "ArrowDown" && first[job + 1] < blocks.length) show(blocks[first[job + 1]], true);
  }

  canvas.addEventListener("keydown", (event) => {
    const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: whole };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) step(event.key);
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (view.drag) {
      view.drag.to = event.offsetX;
      draw();
    } else {
      const block = blockAt(event.offsetX, event.offsetY);
      if (block && block !== view.at) show(block);
    }
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    view.drag = { from: event.offsetX, to: event.offsetX };
    const block = blockAt(event.offsetX, event.offsetY);
    if (block) show(block);
  });
  canvas.addEventListener("pointerup", () => {
    const { from, to } = view.drag || { from: 0, to: 0 };
    view.drag = null;
    if (Math.abs(to - from) > 8) {
      const times = [toTime(from), toTime(to)].sort((a, b) => a - b);
      view.from = Math.max(0, times[0]);
      view.to = Math.min(Math.max(times[1], view.from + 2), Math.max(view.run.end, view.from + 2));
    }
    draw();
  });
  for (const name of ["pointercancel", "pointerleave"])
    canvas.addEventListener(name, () => {
      view.drag = null;
      draw();
    });
  canvas.addEventListener("dblclick", whole);
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.shiftKey) return; // else the page scrolls
      event.preventDefault();
      zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, toTime(event.offsetX));
    },
    { passive: false },
  );
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", whole);
  byId("colouring").addEventListener("change", draw);
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // ---- the table of jobs -----------------------------------------------------------------------
  const box = byId("window");
  const table = byId("job-table");
  const jobs = { run: data.runs[0], order: [], sort: "submitted", descending: false, shown: "" };
  const seconds = (name) => (run, job) => (run[name][job] === null ? null : run[name][job] * run.tick);
  const own = (name) => (run, job) => run[name][job];
  const word = (name) => (run, job) => (traceOf(run)[name] ? words[traceOf(run)[name][job]] : "");
  const some = (name) => data.traces.some((trace) => trace[name]);
  const COLUMNS = [
    { name: "job", value: nameOf, word: true },
    { name: "model", value: word("model"), word: true },
    ...(some("user") ? [{ name: "user", value: word("user"), word: true }] : []),
    ...(some("team") ? [{ name: "team", value: word("team"), word: true }] : []),
    { name: "outcome", value: (run, job) => words[run.outcome[job]], word: true },
    { name: "GPUs asked", value: (run, job) => traceOf(run).asked[job], text: plain },
    { name: "submitted", value: seconds("submit"), text: duration },
    { name: "waited", value: seconds("wait"), text: duration },
    { name: "JCT", value: seconds("jct"), text: duration },
    { name: "FTF", value: own("ftf"), text: (value) => plain(value, 3) },
    { name: "GPU hours", value: own("gpu_h"), text: (value) => plain(value, 2) },
    { name: "stall", value: seconds("stall"), text: duration },
    ...["preemptions", "rescales", "moves", "restarts"].map((name) => ({ name, value: own(name), text: plain })),
  ].filter((column) => column.word || data.runs.some((run) => run.submit.some((_, job) => column.value(run, job) !== null)));
  const columnOf = (name) => COLUMNS.find((column) => column.name === name);

  function make(tag, text, parent) {
    const element = document.createElement(tag);
    if (text !== null) element.textContent = text;
    parent.append(element);
    return element;
  }

  for (const column of COLUMNS) {
    const header = make("th", null, table.tHead.rows[0]);
    header.scope = "col";
    if (column.word) header.className = "word";
    const button = make("button", column.name, header);
    button.type = "button";
    button.addEventListener("click", () => {
      jobs.descending = jobs.sort === column.name ? !jobs.descending : !column.word;
      jobs.sort = column.name;
      arrange();
    });
    column.header = header;
  }

  function arrange() {
    const { run } = jobs;
    const wanted = byId("filter").value.trim().toLowerCase();
    const outcome = byId("outcome").value;
    const matches = (job) => {
      if (outcome && words[run.outcome[job]] !== outcome) return false;
      return !wanted || COLUMNS.some((each) => each.word && each.value(run, job).toLowerCase().includes(wanted));
    };
    const column = columnOf(jobs.sort);
    const found = [];
    for (let job = 0; job < run.submit.length; job++)
      if (matches(job)) found.push([column.value(run, job), job]);
    const sign = jobs.descending ? -1 : 1;
    found.sort(([a, first], [b, second]) => {
      if (a === b) return first - second;
      if (a === null || b === null) return a === null ? 1 : -1; // what is not known comes last
      return sign * (a < b ? -1 : 1);
    });
    jobs.order = found.map(([, job]) => job);
    for (const each of COLUMNS) {
      if (each.name === jobs.sort) each.header.setAttribute("aria-sort", jobs.descending ? "descending" : "ascending");
      else each.header.removeAttribute("aria-sort");
    }
    table.setAttribute("aria-rowcount", jobs.order.length + 1);
    byId("count").textContent = `${plain(jobs.order.length)} of ${plain(run.submit.length)} jobs`;
    box.scrollTop = 0;
    fill(true);
  }

  // Only the rows in sight are in the document; two empty rows stand for those above and below.
  function fill(again = false, printed = 0) {
    const count = jobs.order.length;
    const first = printed ? 0 : Math.max(0, Math.floor(box.scrollTop / ROW) - 8);
    const last = printed || Math.min(count, first + Math.ceil((box.clientHeight || 500) / ROW) + 16);
    if (!again && jobs.shown === `${first} ${last}`) return;
    jobs.shown = `${first} ${last}`;
    const focused = document.activeElement && table.contains(document.activeElement) ? document.activeElement.dataset.job : undefined;
    const body = document.createElement("tbody");
    spacer(body, first);
    for (let at = first; at < Math.min(last, count); at++) body.append(rowOf(jobs.order[at], at));
    spacer(body, printed ? 0 : count - last);
    table.tBodies[0].replaceWith(body);
    if (focused !== undefined) {
      const button = body.querySelector(`button[data-job="${focused}"]`);
      if (button) button.focus({ preventScroll: true });
    }
  }

  function spacer(body, rows) {
    if (rows <= 0) return;
    const row = make("tr", null, body);
    row.className = "gap";
    row.setAttribute("aria-hidden", "true");
    const cell = make("td", null, row);
    cell.colSpan = COLUMNS.length;
    cell.style.height = rows * ROW + "px";
  }

  function rowOf(job, at) {
    const row = document.createElement("tr");
    row.setAttribute("aria-rowindex", at + 2);
    COLUMNS.forEach((column, index) => {
      const value = column.value(jobs.run, job);
      const text = value === null ? "–" : column.text ? column.text(value) : value;
      const cell = make(index ? "td" : "th", index ? text : null, row);
      if (column.word) cell.className = "word";
      if (index) return;
      cell.scope = "row";
      const button = make("button", text, cell);
      button.type = "button";
      button.title = text;
      button.dataset.job = job;
      button.addEventListener("click", () => find(job));
    });
    return row;
  }

  function find(job) {
    choose(jobs.run);
    const blocks = blocksOf(view.run);
    const [first, last] = [view.run.first[job], view.run.first[job + 1]];
    if (first === last) {
      byId("seen").textContent = `${nameOf(view.run, job)} never held GPUs.`;
    } else {
      const length = Math.max(1, blocks[last - 1].to - blocks[first].from);
      view.from = Math.max(0, blocks[first].from - length / 10);
      view.to = Math.max(view.from + 2, Math.min(view.run.end, blocks[last - 1].to + length / 10));
      show(blocks[first]);
    }
    canvas.focus();
    canvas.scrollIntoView({ block: "center" });
  }

  box.addEventListener("scroll", () => fill());
  byId("filter").addEventListener("input", arrange);
  byId("outcome").addEventListener("change", arrange);
  window.addEventListener("beforeprint", () => {
    if (jobs.order.length > PRINTED) byId("count").textContent += `; the first ${PRINTED} are printed`;
    fill(true, Math.min(PRINTED, jobs.order.length));
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
  window.addEventListener("afterprint", () => arrange());

  // ---- the run that is shown -------------------------------------------------------------------
  const choosers = [byId("run"), byId("run-of-jobs")];
  function choose(run) {
    const index = data.runs.indexOf(run);
    for (const each of choosers) each.value = index;
    if (view.run === run && jobs.run === run && jobs.order.length) return;
    view.run = jobs.run = run;
    view.at = null;
    byId("grain").textContent = run.grain
      ? `There are too many changes to show all: those of a job within ${duration(run.grain)} are one block, with the mean of their GPUs.`
      : "";
    canvas.setAttribute("aria-description", `${run.label}: ${plain(run.submit.length)} jobs on ${plain(run.gpus)} ${run.slots}`);
    whole();
    arrange();
  }

  for (const each of choosers) {
    data.runs.forEach((run, index) => {
      make("option", run.label, each).value = index;
    });
    each.addEventListener("change", () => choose(data.runs[each.value]));
  }
  const outcomes = new Set(data.runs.flatMap((run) => [...new Set(run.outcome)]));
  for (const outcome of outcomes) make("option", words[outcome], byId("outcome")).value = words[outcome];
  if (!some("user")) byId("colouring").querySelector('[value="user"]').remove();

  for (const part of document.querySelectorAll(".live")) part.hidden = false;
  choose(data.runs[0]);
  paint();
  document.documentElement.dataset.readyMs = Math.round(performance.now());
})();

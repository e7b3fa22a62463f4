// The page: asks the API how everything stands, and shows it; `windlass top` for a browser.
//
// It changes nothing. All text comes into the document as text, never as markup. Numbers are written as the command
// line writes them. It looks while somebody looks at it, and less often where a look takes long.
"use strict";

const REST_MS = 2000;
// A look that takes long comes round less often: it is at rest for so many times as long.
const REST_TIMES = 4;
const PATIENCE_MS = 15000;
const RATE_OVER_MS = 60000;
const ROWS_MAX = 200;
const RUNNING_MAX = 50;
const WHY_MAX = 8;
const SPOKEN_EVERY_MS = 15000;
const TOKEN = "windlass-token";

const at = (id) => document.getElementById(id);

// ---- Asking

class Refused extends Error {}
class Missing extends Error {}

function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

async function ask(path) {
  const headers = token() ? { authorization: `Bearer ${token()}` } : {};
  // Relative, so that a proxy may put the server below any path.
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const answer = await fetch(`api/v1/${path}`, { headers, cache: "no-store", signal });
  if (answer.status === 401) throw new Refused();
  const said = await answer.json();
  if (answer.status === 404) throw new Missing();
  if (!answer.ok) throw new Error(said.detail ?? said.title ?? `the server answered ${answer.status}`);
  return said;
}

const items = async (path) => (await ask(path)).items ?? [];

async function running() {
  const flights = (await items("flights")).filter((flight) => !flight.stocked);
  flights.sort((a, b) => (a.started < b.started ? -1 : 1));
  const longest = flights.slice(0, RUNNING_MAX);
  if (longest.length === 0) return [];
  const selector = encodeURIComponent(`id:${longest.map((flight) => flight.job).join(",")}`);
  const jobs = await items(`jobs?limit=${RUNNING_MAX}&selector=${selector}`);
  const byId = new Map(jobs.map((job) => [job.id, job]));
  return longest.map((flight) => ({ ...byId.get(flight.job), ...flight }));
}

// Why queues with ready jobs run none of them.
async function reasons(status) {
  const still = Object.entries(status.queues).filter(([, counts]) => counts.ready > 0 && counts.running === 0);
  const asked = still.slice(0, WHY_MAX).map(async ([queue]) => {
    try {
      const why = (await ask(`why?of=${encodeURIComponent(queue)}`)).reasons[0];
      return [queue, why && why.code !== "runnable" ? why.text : ""];
    } catch (error) {
      // Its last job has just gone.
      if (error instanceof Missing) return [queue, ""];
      throw error;
    }
  });
  return new Map(await Promise.all(asked));
}

async function spools() {
  try {
    return await items("spools");
  } catch (error) {
    if (error instanceof Refused) throw error;
    return [{ directory: "", stages: [], left_s: null, error: error.message }];
  }
}

async function look() {
  const since = encodeURIComponent(new Date(Date.now() - RATE_OVER_MS).toISOString());
  const failed = encodeURIComponent("state:failed ended<1h");
  const status = await ask("status");
  const [stats, flights, runs, bad, why, documents] = await Promise.all([
    ask(`stats?since=${since}`),
    running(),
    items(`runs?limit=${ROWS_MAX}`),
    items(`jobs?limit=${ROWS_MAX}&selector=${failed}`),
    reasons(status),
    spools(),
  ]);
  return { at: Date.now(), status, stats, running: flights, runs, failed: bad, why, documents };
}

// ---- Words and numbers, as the command line has them

const grouped = (number) => String(Math.trunc(number ?? 0)).replace(/\B(?=(\d{3})+$)/g, ",");

// A duration for people: its two largest units at most.
function spoken(time) {
  const seconds = Math.floor(time);
  // Halves go to the even digit there.
  if (seconds < 10) return `${time % 1 === 0.25 ? `${seconds}.2` : time.toFixed(1)}s`;
  if (seconds < 60) return `${seconds}s`;
  const [large, unit, small, rest] =
    seconds < 3600 ? [60, "m", 1, "s"] : seconds < 86400 ? [3600, "h", 60, "m"] : [86400, "d", 3600, "h"];
  const left = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)}${unit}${left === 0 ? "" : ` ${left}${rest}`}`;
}

// Of one document, so also what is less than a second.
function brief(time) {
  if (time === null || time === undefined) return "-";
  return time < 1 ? `${Math.floor(Math.round(time * 1e9) / 1e6)}ms` : spoken(time);
}

// Characters that cannot be seen, or that turn others round, are spelled out.
function visible(text) {
  const named = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };
  const spell = (c) => named[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`;
  return String(text ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, spell);
}

function dataOf(job) {
  if (job.data_base64 === undefined) return visible(job.data);
  const bytes = Uint8Array.from(atob(job.data_base64), (c) => c.charCodeAt(0));
  return visible(new TextDecoder().decode(bytes));
}

// How long so many jobs take at this rate; nothing where nothing moves.
const leftOf = (jobs, perMinute) => (jobs > 0 && perMinute > 0 ? spoken((jobs / perMinute) * 60) : "-");

const WAITING = ["scheduled", "ready", "retrying"];
const waitingOf = (counts) => WAITING.reduce((sum, state) => sum + (counts[state] ?? 0), 0);

// ---- Showing

const name = (text) => ({ text: visible(text), kind: "name" });
const words = (text, tone = "") => ({ text: visible(text), kind: `text ${tone}` });
const word = (text, tone = "") => ({ text: visible(text), kind: tone });
const ident = (text) => ({ text: visible(text), kind: "id" });
const number = (text, tone = "") => ({ text, kind: `number ${tone}` });
const count = (value, tone = "") => number(grouped(value), value > 0 ? tone : "");

// Text with a bar before it, where it begins as `3/10` does.
function progress(text) {
  const [, done, of] = /^(\d+(?:\.\d+)?)\/(\d+(?:\.\d+)?)/.exec(text ?? "") ?? [];
  const bar = of > 0 ? { done: Math.min(Number(done), Number(of)), of: Number(of) } : null;
  return { text: text ? visible(text) : "-", kind: "", bar };
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A table with these columns at the end of a place, or the one that is there.
function tableIn(place, columns, label) {
  let table = place.querySelector("table");
  if (!table) {
    // On narrow screens rows are cards: the roles say what they still are.
    const heads = columns.map((column) => element("th", { textContent: column, scope: "col", role: "columnheader" }));
    table = element("table", { role: "table" });
    table.append(
      element("caption"),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)),
      element("tbody", { role: "rowgroup" }),
    );
    table.setAttribute("aria-label", label);
    place.append(table);
  }
  return table;
}

function fillCell(cell, { text, kind, bar }) {
  const wanted = `${kind} ${text === "" ? "empty" : ""}`.trim();
  if (cell.className !== wanted) cell.className = wanted;
  let shown = cell.querySelector("progress");
  if (bar && !shown) {
    shown = element("progress");
    cell.prepend(shown);
  } else if (!bar && shown) {
    shown.remove();
  }
  if (bar) {
    [shown.max, shown.value] = [bar.of, bar.done];
    shown.setAttribute("aria-label", text);
  }
  put(cell.querySelector("bdi"), text);
}

// Rows are kept by their keys, so that what is looked at stays where it is.
function fill(place, label, columns, all, none) {
  const sought = at("filter").value.toLowerCase();
  const having = all.filter((row) => row.cells.some((cell) => cell.text.toLowerCase().includes(sought)));
  const rows = having.slice(0, ROWS_MAX);
  const table = tableIn(place, columns, label);
  const hidden = having.length - rows.length;
  const caption = having.length === 0 ? (all.length === 0 ? none : "no row has this text") : "";
  put(table.caption, hidden > 0 ? `${grouped(hidden)} more are not shown: filter them` : caption);
  table.tHead.hidden = rows.length === 0;
  // A heading stands where its numbers do.
  const heads = [...table.tHead.rows[0].cells];
  rows[0]?.cells.forEach((cell, index) => heads[index].classList.toggle("number", cell.kind.startsWith("number")));
  const body = table.tBodies[0];
  const before = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const lines = rows.map(({ key, cells }) => {
    const line = before.get(key) ?? newLine(key, columns);
    cells.forEach((cell, index) => fillCell(line.cells[index], cell));
    return line;
  });
  const same = lines.length === body.rows.length && lines.every((line, index) => body.rows[index] === line);
  if (!same) body.replaceChildren(...lines);
}

function newLine(key, columns) {
  const line = element("tr", { role: "row" });
  line.dataset.key = key;
  columns.forEach((column, index) => {
    const cell = index === 0 ? element("th", { scope: "row", role: "rowheader" }) : element("td", { role: "cell" });
    cell.dataset.label = column;
    cell.append(element("bdi"));
    line.append(cell);
  });
  return line;
}

function showHead({ status, stats }) {
  const { server, totals } = status;
  const condition = server.condition.replaceAll("_", " ");
  const troubles = Object.entries(status.troubles ?? {}).map(
    ([entry, trouble]) => `the workers of [queue.${visible(entry)}] cannot serve: ${visible(trouble)}`,
  );
  const who = `${condition}, version ${server.version}, pid ${server.pid}, ${visible(server.dir)}`;
  put(at("server"), [who, ...troubles].join("; "));
  at("server").className = condition === "serving" && troubles.length === 0 ? "good" : "bad";
  const rate = stats.total?.per_minute ?? 0;
  const shown = ["ready", "running", "retrying", "scheduled", "suspended", "failed"].map((state) => [
    state,
    grouped(totals[state]),
  ]);
  const left = leftOf(waitingOf(totals) + totals.running, rate);
  shown.push(["jobs a minute", grouped(Math.round(rate))], ["empty in about", left]);
  const place = at("totals");
  if (place.children.length === 0) {
    place.append(...shown.map(([what]) => element("div", {}, element("dt", { textContent: what }), element("dd"))));
  }
  shown.forEach(([, text], index) => put(place.children[index].lastChild, text));
  document.title = `${grouped(totals.running)} running, ${grouped(totals.ready)} ready - Windlass`;
}

function showQueues({ status, stats, why }) {
  const rates = new Map((stats.rows ?? []).map((row) => [row.key, row]));
  const queues = Object.entries(status.queues).map(([queue, counts]) => ({ queue, counts, waits: waitingOf(counts) }));
  queues.sort((a, b) => b.waits - a.waits || b.counts.running - a.counts.running || (a.queue < b.queue ? -1 : 1));
  const rows = queues.map(({ queue, counts, waits }) => {
    const row = rates.get(queue);
    const rate = row?.per_minute ?? 0;
    const closed = status.closed?.[queue];
    const p95 = row?.run_s?.p95;
    return {
      key: queue,
      cells: [
        name(queue), word(closed ?? "open", closed ? "bad" : ""), count(waits), count(counts.running),
        count(counts.failed, "bad"), number(grouped(Math.round(rate))), number(leftOf(waits + counts.running, rate)),
        number(typeof p95 === "number" ? spoken(p95) : "-"), words(why.get(queue) ?? ""),
      ],
    };
  });
  const columns = [
    "queue", "state", "waiting", "running", "failed", "jobs a minute", "left", "95 of 100 took", "why it does not run",
  ];
  fill(at("queues"), "Queues", columns, rows, "No queue yet: the first push makes one.");
}

function showJobs(scene) {
  const under = scene.running.map((job) => ({
    key: job.job,
    cells: [
      ident(job.job), word(job.queue), number(spoken(Math.max(0, (scene.at - Date.parse(job.started)) / 1000))),
      progress(job.progress), word(job.phase), words(dataOf(job)),
    ],
  }));
  fill(at("running"), "Running", ["job", "queue", "for", "progress", "phase", "data"], under, "Nothing runs.");
  const bad = [...scene.failed].sort((a, b) => (a.ended < b.ended ? 1 : -1)).map((job) => ({
    key: job.id,
    cells: [
      ident(job.id), word(job.queue), word(job.ended ? new Date(job.ended).toLocaleTimeString() : ""),
      word(job.reason, "bad"), words((job.errors ?? []).at(-1)?.text),
    ],
  }));
  fill(at("failed"), "Failed", ["job", "queue", "at", "reason", "error"], bad, "Nothing failed.");
}

function showRuns({ runs }) {
  const rows = runs.filter((run) => !run.ended).map((run) => ({
    key: run.id,
    cells: [
      ident(run.id), progress(`${run.total - run.live}/${run.total}`), count(run.counts.failed, "bad"),
      count(run.counts.running), word(run.sealed ? "sealed" : "open"), words(run.name),
    ],
  }));
  fill(at("runs"), "Runs", ["run", "done", "failed", "running", "input", "name"], rows, "No run is under way.");
}

function stageRow(stage) {
  const least = stage.at_least ? "+" : "";
  return {
    key: stage.path,
    cells: [
      name(stage.stage), number(grouped(stage.waiting) + least), count(stage.working), count(stage.failed, "bad"),
      count(stage.aside, "bad"), count(stage.drivers), number(brief(stage.work_s)), number(brief(stage.wait_s)),
      number(brief(stage.block_s)), number(brief(stage.overhead_s)), number(grouped(Math.round(stage.per_hour))),
      number(brief(stage.left_s)),
    ],
  };
}

function showDocuments({ documents }) {
  const part = at("documents");
  part.hidden = documents.length === 0;
  const key = JSON.stringify(documents.map((spool) => spool.directory));
  if (part.dataset.key !== key) {
    part.dataset.key = key;
    const places = documents.map(() => element("div", {}, element("h3"), element("p", { className: "bad" })));
    part.replaceChildren(part.querySelector("h2"), ...places);
  }
  const columns = [
    "stage", "waiting", "working", "failed", "aside", "drivers",
    "work", "wait", "block", "overhead", "per hour", "left",
  ];
  documents.forEach((spool, index) => {
    const place = part.querySelectorAll(":scope > div")[index];
    const left = spool.left_s > 0 ? `, through in about ${spoken(spool.left_s)}` : "";
    put(place.querySelector("h3"), `${visible(spool.directory)}${left}`);
    put(place.querySelector("p"), visible(spool.error));
    const none = spool.error ? "" : "No document was ever here.";
    fill(place, `Documents in ${visible(spool.directory)}`, columns, spool.stages.map(stageRow), none);
  });
}

let lastSpoken = 0;

function show(scene) {
  at("main").hidden = false;
  showHead(scene);
  showQueues(scene);
  showJobs(scene);
  showRuns(scene);
  showDocuments(scene);
  if (scene.at - lastSpoken > SPOKEN_EVERY_MS) {
    lastSpoken = scene.at;
    const { ready, running: run, failed } = scene.status.totals;
    put(at("spoken"), `${grouped(ready)} ready, ${grouped(run)} running, ${grouped(failed)} failed`);
  }
}

// ---- Going on

let scene = null;
let held = false;
let timer = 0;
let looking = false;

// Nobody's selection is taken away from under them.
const selecting = () => !document.getSelection().isCollapsed;

function tellTrouble(text) {
  at("trouble").hidden = text === "";
  put(at("trouble"), text);
  at("main").classList.toggle("old", text !== "");
}

async function round() {
  clearTimeout(timer);
  if (looking || held || document.hidden || !at("login").hidden) return;
  looking = true;
  const began = performance.now();
  try {
    scene = await look();
    tellTrouble("");
    if (held || selecting()) return;
    show(scene);
    put(at("age"), `as of ${new Date(scene.at).toLocaleTimeString()}`);
  } catch (error) {
    if (error instanceof Refused) return askForToken();
    tellTrouble(`trying again: ${visible(error.message)}`);
  } finally {
    looking = false;
    timer = setTimeout(round, Math.max(REST_MS, (performance.now() - began) * REST_TIMES));
  }
}

function askForToken() {
  const wrong = token() !== "";
  sessionStorage.removeItem(TOKEN);
  tellTrouble(wrong ? "this is not the server's token" : "");
  at("main").hidden = true;
  at("login").hidden = false;
  at("token").focus();
}

function begin() {
  // A token in the address is never sent, and does not stay there.
  const given = /^#token=(.+)$/.exec(location.hash);
  const filter = new URLSearchParams(location.search).get("filter") ?? "";
  if (given) {
    sessionStorage.setItem(TOKEN, decodeURIComponent(given[1]));
    history.replaceState(null, "", location.pathname + location.search);
  }
  at("filter").value = filter;
  at("filter").addEventListener("input", () => {
    const text = at("filter").value;
    history.replaceState(null, "", text ? `?filter=${encodeURIComponent(text)}` : location.pathname);
    if (scene) show(scene);
  });
  at("hold").addEventListener("click", () => {
    held = !held;
    at("hold").setAttribute("aria-pressed", String(held));
    round();
  });
  at("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, at("token").value.trim());
    at("token").value = "";
    at("login").hidden = true;
    round();
  });
  document.addEventListener("visibilitychange", round);
  round();
}

begin();

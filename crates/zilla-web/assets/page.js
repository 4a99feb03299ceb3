// What the page asks and does. Figures are asked for once a second while the page is looked at, and not at all while it is not.
"use strict";

const $ = (id) => document.getElementById(id);
const POINTS = 120, SHOWN_SNAPSHOTS = 500, SLOW = 10, PIECES = 100;
let token = "", role = "viewer", view = "pools", beat = 0, busy = false;
const before = new Map(), lines = new Map();

class Refused extends Error {}

// The token comes after the '#', which a browser sends to nobody; it is taken out of the address at once.
function takeToken() {
  if (location.hash.length > 1) {
    sessionStorage.setItem("token", location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
  }
  token = sessionStorage.getItem("token") || "";
}

async function fetchWith(path, options) {
  const reply = await fetch(path, { ...options, headers: { ...(options.headers || {}), authorization: `Bearer ${token}` } });
  if (reply.status === 401) throw new Refused("this token is not known");
  if (!reply.ok) throw new Error((await reply.text()).trim());
  return reply;
}

async function call(operation, request, command) {
  const body = JSON.stringify({ protocol: 1, command, request });
  const reply = await fetchWith(`/v1/${operation}`, { method: "POST", headers: { "content-type": "application/json" }, body });
  const outcome = await reply.json();
  if (outcome.err) throw new Error(outcome.err.message || outcome.err.code);
  return outcome.ok;
}

// Changes only what differs, and leaves the focus where it was.
function put(element, html) {
  if (element.shown === html) return;
  const focused = document.activeElement && element.contains(document.activeElement) ? document.activeElement.id : "";
  element.innerHTML = html;
  element.shown = html;
  if (focused && $(focused)) $(focused).focus();
}

const say = (text, bad) => { $("state").textContent = text; $("state").className = bad ? "bad" : ""; };

function confirmAndRun(pool, title, command, operation, request) {
  $("ask-title").textContent = title;
  $("ask-command").textContent = command;
  const dialog = $("ask");
  dialog.onclose = async () => {
    if (dialog.returnValue !== "yes") return;
    try {
      await call(operation, request, command);
      say(`done: ${command}`);
      // As the command itself does at its end.
      await call("pool_log", { name: pool, line: command });
    } catch (e) { say(`${command}: ${e.message}`, true); }
  };
  dialog.returnValue = "no";
  dialog.showModal();
}

const quoted = (word) => (/^[\w.:@/=+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

// Title, command, operation and request of what can be done to a pool as it is.
function actionsOf(pool) {
  const s = pool.scan || {}, running = s.func === "scrub" && s.state === "scanning", name = pool.name;
  const scrub = (what, flag, command) => [what, `zpool scrub ${flag}${quoted(name)}`, "pool_scrub", { name, command }];
  const all = [];
  if (!running || s.pass_scrub_pause) all.push(scrub(s.pass_scrub_pause ? "Go on scrubbing" : "Scrub", "", "start"));
  if (running && !s.pass_scrub_pause) all.push(scrub("Pause the scrub", "-p ", "pause"));
  if (running) all.push(scrub("Stop the scrub", "-s ", "stop"));
  all.push(["Clear errors", `zpool clear ${quoted(name)}`, "pool_clear", { name }]);
  const snap = `page-${new Date().toISOString().slice(0, 16).replace(/[-:]/g, "")}`;
  all.push(["Snapshot everything", `zfs snapshot -r ${quoted(`${name}@${snap}`)}`, "dataset_snapshot", { names: [`${name}@${snap}`], recursive: true }]);
  return all;
}

let offered = [];
function buttons(pool) {
  if (role !== "operator") return "";
  return actionsOf(pool).map((action) => {
    offered.push(action);
    return `<button type="button" id="do-${esc(pool.guid)}-${esc(action[2])}-${esc(action[0])}" data-pool="${esc(pool.name)}" data-action="${offered.length - 1}">${esc(action[0])}</button>`;
  }).join("");
}

// What was done a second since the last time.
function point(pool) {
  const s = pool.root.stats, last = before.get(pool.guid), points = lines.get(pool.guid) || [];
  if (last && s.timestamp > last.timestamp) {
    const seconds = (s.timestamp - last.timestamp) / 1e9;
    const rate = (key) => Math.max(0, (s[key] - last[key]) / seconds);
    points.push({ read: rate("read_bytes"), write: rate("write_bytes") });
    if (points.length > POINTS) points.shift();
  }
  before.set(pool.guid, s);
  lines.set(pool.guid, points);
  return points;
}

// A pool's whole history comes in pieces, the oldest first.
async function historyOf(name) {
  let records = [], offset = 0;
  for (let i = 0; i < PIECES && offset !== null; i += 1) {
    const piece = await call("pool_history", { name, offset });
    records = records.concat(piece.records);
    offset = piece.next;
  }
  return records;
}

async function refresh() {
  const slow = beat % SLOW === 0;
  const pools = await call("pool_query", {});
  offered = [];
  const drawn = pools.map((pool) => poolView(pool, point(pool), buttons(pool), Date.now() / 1000)).join("");
  if (view === "pools") put($("pools"), drawn || "<p>No pool is imported: <code>zpool import</code> or <code>zpool create</code>.</p>");
  if (view === "caches") put($("caches"), cacheView(await call("arc_stats", {}), await call("log_stats", {})));
  if (view === "datasets" && slow) {
    const request = { kinds: ["filesystem", "volume"], properties: ["used", "available", "compressratio", "mountpoint"] };
    put($("datasets"), datasetView((await call("dataset_query", request)).datasets));
  }
  if (view === "snapshots" && slow) {
    const request = { kinds: ["snapshot"], properties: ["used", "referenced"] };
    put($("snapshots"), snapshotView((await call("dataset_query", request)).datasets, SHOWN_SNAPSHOTS));
  }
  if (view === "history" && slow) {
    const parts = await Promise.all(pools.map((pool) => historyOf(pool.name)));
    const all = parts.flat();
    all.sort((a, b) => a.time - b.time);
    put($("history"), historyView(all));
  }
  const bad = pools.filter((pool) => pool.health !== "ONLINE").length;
  const text = `${pools.length} ${pools.length === 1 ? "pool" : "pools"}, ${bad === 0 ? "all well" : `${bad} not well`}, as ${role}`;
  if (beat === 0 || slow) say(text, bad > 0);
}

async function tick() {
  if (busy || document.hidden || $("enter").open) return;
  busy = true;
  try {
    await refresh();
    beat += 1;
  } catch (e) {
    if (e instanceof Refused) enter();
    else say(`the daemon does not answer: ${e.message}`, true);
  } finally { busy = false; }
}

function enter() {
  if ($("enter").open) return;
  $("enter").onclose = async () => {
    token = $("token").value.trim();
    $("token").value = "";
    sessionStorage.setItem("token", token);
    await begin();
  };
  $("enter").showModal();
}

async function begin() {
  try {
    role = (await (await fetchWith("/role", {})).text()).trim();
    beat = 0;
    await tick();
  } catch (e) {
    if (e instanceof Refused) enter();
    else say(`the daemon does not answer: ${e.message}`, true);
  }
}

document.querySelector("nav").addEventListener("click", (event) => {
  const chosen = event.target.closest("button[data-view]");
  if (!chosen) return;
  view = chosen.dataset.view;
  for (const button of document.querySelectorAll("nav button")) {
    if (button === chosen) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  for (const section of document.querySelectorAll("main section")) section.hidden = section.id !== view;
  beat = 0;
  tick();
});

$("main").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  const action = button && offered[Number(button.dataset.action)];
  if (action) confirmAndRun(button.dataset.pool, ...action);
});

takeToken();
begin();
setInterval(tick, 1000);

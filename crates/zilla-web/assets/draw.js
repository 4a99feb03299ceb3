// What is shown, made of what the daemon says. Functions of their arguments only; every name goes through esc().
"use strict";

const esc = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function bytes(n) {
  if (!Number.isFinite(n)) return "-";
  let i = 0;
  while (n >= 1024 && i < 6) { n /= 1024; i += 1; }
  const digits = n >= 100 || i === 0 ? 0 : n >= 10 ? 1 : 2;
  return `${n.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][i]}`;
}

const percent = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-");

function span(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "-";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString() : "never");

const STATES = {
  unknown: "UNKNOWN", closed: "CLOSED", offline: "OFFLINE", removed: "REMOVED", cant_open: "UNAVAIL",
  faulted: "FAULTED", degraded: "DEGRADED", healthy: "ONLINE",
};

const stateWord = (word) => `<span class="state ${esc(word)}">${esc(word)}</span>`;

function vdevName(vdev) {
  // Not its guid: a browser's numbers are too short for one.
  if (["disk", "file", "missing"].includes(vdev.kind)) return vdev.path || "a missing device";
  const parity = ["raidz", "draid"].includes(vdev.kind) ? vdev.nparity : "";
  return `${vdev.kind}${parity}-${vdev.id}`;
}

// Rows of a vdev and what hangs below it.
function vdevRows(vdev, depth, section) {
  if (["hole", "indirect"].includes(vdev.kind)) return "";
  const s = vdev.stats;
  const name = depth === 0 && section ? `${esc(vdevName(vdev))} <small>(${esc(section)})</small>` : esc(vdevName(vdev));
  const count = (n) => `<td class="n${n > 0 ? " bad" : ""}">${n}</td>`;
  const note = s.aux && s.aux !== "none" ? ` <small>${esc(s.aux.replaceAll("_", " "))}</small>` : "";
  return `<tr><td class="name d${Math.min(depth, 8)}">${name}</td><td>${stateWord(STATES[s.state] || "UNKNOWN")}${note}</td>` +
    `${count(s.read_errors)}${count(s.write_errors)}${count(s.checksum_errors)}</tr>` +
    vdev.children.map((child) => vdevRows(child, depth + 1)).join("");
}

function topology(pool) {
  const rows = pool.root.children.map((v) => vdevRows(v, 0, v.class === "normal" ? "" : v.class)).join("") +
    pool.l2cache.map((v) => vdevRows(v, 0, "cache")).join("") + pool.spares.map((v) => vdevRows(v, 0, "spare")).join("");
  return `<div class="wide"><table><caption>Devices of ${esc(pool.name)}</caption><thead><tr><th scope="col">Name</th>` +
    `<th scope="col">State</th><th scope="col" class="n">Read errors</th><th scope="col" class="n">Write</th>` +
    `<th scope="col" class="n">Checksum</th></tr></thead><tbody>${rows}</tbody></table></div>`;
}

// What a scan says of itself; an estimate only once there is something to go by.
function scan(pool, now) {
  const s = pool.scan;
  if (!s || s.func === "none") return "<p>It was never scrubbed.</p>";
  const what = s.func === "scrub" ? "Scrub" : "Resilver";
  const errors = `${s.errors} ${s.errors === 1 ? "error" : "errors"}`;
  if (s.state === "finished") {
    return `<p>${what} finished ${esc(when(s.end_time))} after ${span(s.end_time - s.start_time)}, ${bytes(s.processed)} repaired, ` +
      `<span class="${s.errors ? "bad" : "good"}">${errors}</span>.</p>`;
  }
  if (s.state === "canceled") return `<p>${what} was stopped ${esc(when(s.end_time))}.</p>`;
  const all = Math.max(s.to_examine - s.skipped, 1);
  const spent = now - s.pass_start - s.pass_scrub_spent_paused;
  const rate = s.pass_issued / Math.max(spent, 1);
  const left = s.pass_scrub_pause ? "paused" : spent > 10 && rate > 0 ? `${span((all - s.issued) / rate)} to go` : "no estimate yet";
  return `<p>${what} ${s.pass_scrub_pause ? "is paused" : "runs"}: ${percent(s.issued, all)} of ${bytes(all)}, ${bytes(rate)}/s, ${left}, ` +
    `${bytes(s.processed)} repaired, ${errors}.</p><progress max="1" value="${(s.issued / all).toFixed(3)}">${percent(s.issued, all)}</progress>`;
}

// Two lines over time, of what was done a second.
function chart(label, points) {
  const most = Math.max(1, ...points.flatMap((p) => [p.read, p.write]));
  const line = (key) => points.map((p, i) => `${(i * 100 / Math.max(points.length - 1, 1)).toFixed(1)},${(38 - 36 * p[key] / most).toFixed(1)}`).join(" ");
  const last = points[points.length - 1] || { read: 0, write: 0 };
  const said = `${label}: reads ${bytes(last.read)}/s, writes ${bytes(last.write)}/s`;
  return `<svg class="chart" role="img" aria-label="${esc(said)}" viewBox="0 0 100 40" preserveAspectRatio="none">` +
    `<polyline class="read" points="${line("read")}"/><polyline class="write" points="${line("write")}"/></svg>` +
    `<p class="key">${esc(said)} (dashed: writes; top: ${bytes(most)}/s)</p>`;
}

function poolView(pool, points, actions, now) {
  const s = pool.root.stats;
  const space = `<dl><div><dt>Size</dt><dd>${bytes(s.space)}</dd></div><div><dt>In use</dt><dd>${bytes(s.alloc)} (${percent(s.alloc, s.space)})</dd></div>` +
    `<div><dt>Free</dt><dd>${bytes(s.space - s.alloc)}</dd></div><div><dt>Fragmentation</dt><dd>${s.fragmentation === null ? "-" : `${s.fragmentation} %`}</dd></div>` +
    `<div><dt>Damaged places</dt><dd class="${pool.error_count ? "bad" : "good"}">${pool.error_count}</dd></div></dl>` +
    `<meter min="0" max="1" high="0.8" value="${(s.alloc / Math.max(s.space, 1)).toFixed(3)}" aria-label="Space in use"></meter>`;
  const alarm = pool.suspended ? `<p class="bad">It takes no I/O since its devices failed: mend them, then clear.</p>` : "";
  const logs = pool.kept_logs.map((l) => `<p class="bad">The intent log of ${esc(l.dataset)} could not be replayed: ${esc(l.why)}</p>`).join("");
  return `<article><h2>${esc(pool.name)} ${stateWord(pool.health)}</h2>${alarm}${logs}${space}${scan(pool, now)}` +
    `<div class="actions">${actions}</div>${chart("I/O", points)}${topology(pool)}</article>`;
}

function cacheView(arc, logs) {
  const one = (s) => {
    const c = s.counts, hits = c.hits || 0, all = hits + (c.misses || 0), l2 = c.l2_hits || 0, l2all = l2 + (c.l2_misses || 0);
    const log = (logs.find((l) => l.name === s.pool) || { counts: {} }).counts;
    const cell = (name, value) => `<div><dt>${name}</dt><dd>${value}</dd></div>`;
    return `<article><h2>${esc(s.pool)}</h2><h3>Memory (ARC)</h3><dl>${cell("Size", bytes(c.size || 0))}${cell("May take", bytes(c.c || 0))}` +
      `${cell("Hits", percent(hits, all))}${cell("Accesses", all)}</dl><meter min="0" max="1" value="${(all ? hits / all : 0).toFixed(3)}" aria-label="ARC hit rate"></meter>` +
      `<h3>Cache devices (L2ARC)</h3>` + (c.l2_asize || l2all ? `<dl>${cell("On them", bytes(c.l2_size || 0))}${cell("Compressed", bytes(c.l2_asize || 0))}` +
      `${cell("Hits", percent(l2, l2all))}${cell("Read", bytes(c.l2_read_bytes || 0))}${cell("Written", bytes(c.l2_write_bytes || 0))}</dl>` : "<p>None, or nothing on them yet.</p>") +
      `<h3>Intent log (ZIL)</h3><dl>${cell("Commits", log.commits || 0)}${cell("Waited for a txg", log.commits_txg || 0)}` +
      `${cell("Records", log.records || 0)}${cell("Failed", log.commits_failed || 0)}</dl></article>`;
  };
  return arc.map(one).join("") || "<p>No pool is imported.</p>";
}

const value = (dataset, name) => (dataset.properties[name] ? dataset.properties[name].value : "-");

function datasetView(datasets) {
  const most = Math.max(1, ...datasets.map((d) => Number(value(d, "used")) || 0));
  const row = (d) => {
    const parts = d.name.split("/"), used = Number(value(d, "used")) || 0;
    return `<tr><td class="name d${Math.min(parts.length - 1, 8)}">${esc(parts[parts.length - 1])}</td><td>${esc(d.kind)}</td><td class="n">${bytes(used)}</td>` +
      `<td><meter min="0" max="1" value="${(used / most).toFixed(3)}" aria-label="Part of the largest"></meter></td>` +
      `<td class="n">${bytes(Number(value(d, "available")))}</td><td class="n">${esc(value(d, "compressratio"))}</td><td class="name">${esc(value(d, "mountpoint"))}</td></tr>`;
  };
  return datasets.length === 0 ? "<p>There are no datasets.</p>" :
    `<div class="wide"><table><caption>${datasets.length} datasets</caption><thead><tr><th scope="col">Name</th><th scope="col">Kind</th>` +
    `<th scope="col" class="n">Used</th><th scope="col">Share</th><th scope="col" class="n">Available</th><th scope="col" class="n">Ratio</th><th scope="col">Mounted at</th></tr></thead>` +
    `<tbody>${datasets.map(row).join("")}</tbody></table></div>`;
}

function snapshotView(snapshots, limit) {
  const sorted = [...snapshots].sort((a, b) => b.creation - a.creation);
  const row = (s) => `<tr><td class="name">${esc(s.name)}</td><td>${esc(when(s.creation))}</td><td class="n">${bytes(Number(value(s, "used")))}</td>` +
    `<td class="n">${bytes(Number(value(s, "referenced")))}</td></tr>`;
  if (sorted.length === 0) return "<p>There are no snapshots.</p>";
  const more = sorted.length > limit ? `<p>The latest ${limit} of ${sorted.length}; <code>zfs list -t snapshot</code> has all.</p>` : "";
  return `${more}<div class="wide"><table><caption>Snapshots, latest first. "Would free" is what one frees if it alone is destroyed.</caption><thead><tr><th scope="col">Name</th>` +
    `<th scope="col">Taken</th><th scope="col" class="n">Would free</th><th scope="col" class="n">Refers to</th></tr></thead><tbody>` +
    `${sorted.slice(0, limit).map(row).join("")}</tbody></table></div>`;
}

function historyView(records) {
  const commands = records.filter((r) => r.what && r.what.command).slice(-200).reverse();
  const row = (r) => `<tr><td>${esc(when(r.time))}</td><td class="name"><code>${esc(r.what.command.line)}</code></td><td>${esc(r.user || "")}</td></tr>`;
  return commands.length === 0 ? "<p>Nothing yet.</p>" :
    `<div class="wide"><table><caption>Commands that changed pools, latest first</caption><thead><tr><th scope="col">When</th><th scope="col">Command</th><th scope="col">Who</th></tr></thead>` +
    `<tbody>${commands.map(row).join("")}</tbody></table></div>`;
}

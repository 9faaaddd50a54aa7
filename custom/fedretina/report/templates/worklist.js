"use strict";
(function () {
  const body = document.body;
  const words = JSON.parse(body.dataset.words);
  const grades = JSON.parse(body.dataset.grades); // [name, words] of each gradable grade, in order
  const listId = body.dataset.list;
  const list = document.getElementById("patients");
  const rows = Array.from(list.children);
  const photos = Array.from(list.querySelectorAll("figure.photo"));
  const form = document.getElementById("controls");
  const byId = (id) => document.getElementById(id);
  const STORE = "fedretina-reading:" + listId;
  const HEADER = ["list", "file", "patient", "eye", "answer", "decision", "grade", "note", "reader", "hidden", "decided"];

  function say(key, values) {
    return words[key].replace(/\{(\w+)\}/g, (whole, name) => (values && name in values ? values[name] : whole));
  }
  // As report/text.py has it, of which a test holds this: whole, one place near the ends, 0 and 100 exact.
  function percent(k, n) {
    const value = n ? 100 * (k / n) : 0;
    const places = (value > 0 && value < 1.95) || (value >= 98.05 && value < 100) ? 1 : 0;
    let shown = value.toFixed(places);
    // What lies halfway goes to the even digit, where toFixed goes up.
    const halfway = (value * (places ? 4 : 2)) % 2 === 1;
    if (halfway && Number(shown.slice(-1)) % 2) shown = (value - 0.5 / 10 ** places).toFixed(places);
    if (value > 0 && value < 0.05) shown = "< 0.1";
    if (value >= 99.95 && value < 100) shown = "> 99.9";
    return say("percent", { value: shown.replace(".", words.decimal) });
  }
  const counted = (k, n) => say("slider.of", { k: k, n: n, share: percent(k, n) });

  // ---- decisions: kept in the browser, saved as CSV
  let made = { reader: "", saved: true, by: {} };
  let keeps = true;
  try {
    const kept = JSON.parse(localStorage.getItem(STORE) || "null");
    if (kept && kept.by) made = kept;
  } catch (error) {
    keeps = false;
  }
  function keep() {
    try {
      localStorage.setItem(STORE, JSON.stringify(made));
    } catch (error) {
      keeps = false;
    }
    if (!keeps) byId("told").textContent = words["controls.no_store"];
  }
  const of = (photo) => made.by[photo.dataset.file] || {};
  const wordsOf = (name) => (grades.find((grade) => grade[0] === name) || [name, name])[1];
  function decisionWords(photo) {
    const one = of(photo);
    const kind = { agree: words["decide.agree"], ungradable: words["decide.ungradable"], other: wordsOf(one.grade) }[one.decision];
    return [kind, one.note].filter(Boolean).join("; ");
  }
  function change(photo, values) {
    const one = Object.assign({ decision: "", grade: "", note: "", hidden: false }, of(photo), values);
    if ("decision" in values) {
      one.decided = values.decision ? new Date().toISOString() : "";
      one.reader = made.reader;
      one.hidden = Boolean(values.decision) && form.elements.blind.checked && !of(photo).decision;
      if (of(photo).decision && values.decision) one.hidden = Boolean(of(photo).hidden) && of(photo).grade === one.grade;
    }
    if (one.decision || one.note) made.by[photo.dataset.file] = one;
    else delete made.by[photo.dataset.file];
    made.saved = false;
    keep();
    draw(photo);
    count();
  }
  function decide(photo, decision, grade) {
    if (decision === "agree" && !photo.dataset.answer) return;
    if (decision === "other" && grade === photo.dataset.answer) decision = "agree";
    const settled = { agree: photo.dataset.answer, ungradable: body.dataset.ungradable, other: grade || "" }[decision] || "";
    change(photo, { decision: decision === "other" && !grade ? "" : decision, grade: settled });
  }
  function draw(photo) {
    const one = of(photo);
    photo.classList.toggle("decided", Boolean(one.decision));
    for (const button of photo.querySelectorAll("[aria-pressed]")) {
      button.setAttribute("aria-pressed", String(one.decision === button.dataset.do));
    }
    const select = photo.querySelector("select");
    select.value = one.decision === "other" ? one.grade : "";
    select.classList.toggle("chosen", one.decision === "other");
    const note = photo.querySelector("input[data-do=note]");
    if (note !== document.activeElement) note.value = one.note || "";
    photo.querySelector(".written").textContent = decisionWords(photo);
    const row = photo.closest("li");
    const every = Array.from(row.querySelectorAll("figure.photo"));
    row.classList.toggle("done", every.every((each) => of(each).decision));
    if (photo === looked) drawView();
  }
  function count() {
    const decided = photos.filter((photo) => of(photo).decision).length;
    const state = !Object.keys(made.by).length ? "" : words[made.saved ? "controls.saved" : "controls.unsaved"];
    byId("decided").textContent = [say("controls.decided", { decided: decided, all: photos.length }), state].filter(Boolean).join(", ");
  }
  const plain = (text) => String(text).replace(/[\r\n\t]+/g, " ");
  const guarded = (text) => (/^[=+\-@]/.test(text) ? "'" + text : text); // no spreadsheet runs it
  const quoted = (text) => (/[",;]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text);
  function save() {
    const lines = [HEADER];
    for (const photo of photos) {
      const one = of(photo);
      if (!one.decision && !one.note) continue;
      const data = photo.dataset;
      const reader = one.reader || made.reader;
      const note = guarded(plain(one.note || ""));
      const seen = one.hidden ? "yes" : "no";
      lines.push([listId, data.file, data.patient, data.eye, data.answer, one.decision, one.grade, note, guarded(plain(reader)), seen, one.decided || ""]);
    }
    const text = "\ufeff" + lines.map((line) => line.map((cell) => quoted(String(cell))).join(",") + "\r\n").join("");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "decisions-" + listId.slice(0, 8) + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    made.saved = true;
    keep();
    count();
  }
  function cells(text) {
    const found = [[""]];
    let inside = false;
    for (let at = 0; at < text.length; at += 1) {
      const line = found[found.length - 1];
      const char = text[at];
      if (char === '"' && inside && text[at + 1] === '"') line[line.length - 1] += text[(at += 1)];
      else if (char === '"') inside = !inside;
      else if (char === "," && !inside) line.push("");
      else if (char === "\n" && !inside) found.push([""]);
      else if (char !== "\r" || inside) line[line.length - 1] += char;
    }
    return found.filter((line) => line.length > 1);
  }
  function load(text) {
    const lines = cells(text.replace(/^\ufeff/, ""));
    const header = lines.shift() || [];
    const fits = HEADER.every((name) => header.includes(name)) && lines.length;
    const records = lines.map((line) => Object.fromEntries(header.map((name, at) => [name, line[at] || ""])));
    const known = new Set(photos.map((photo) => photo.dataset.file));
    const mine = records.filter((one) => one.list === listId && known.has(one.file));
    if (!fits || !mine.length) {
      byId("told").textContent = words["controls.wrong_file"];
      return;
    }
    for (const one of mine) {
      const back = (cell) => cell.replace(/^'(?=[=+\-@])/, "");
      made.by[one.file] = {
        decision: one.decision, grade: one.grade, note: back(one.note), hidden: one.hidden === "yes", decided: one.decided, reader: back(one.reader),
      };
    }
    keep();
    photos.forEach(draw);
    count();
    byId("told").textContent = say(mine.length === 1 ? "controls.loaded.one" : "controls.loaded", { count: mine.length });
  }

  // ---- the list: order and filter
  const orders = {
    first: (a, b) => a.dataset.rank - b.dataset.rank,
    doubt: (a, b) => b.dataset.u - a.dataset.u || a.dataset.rank - b.dataset.rank,
    grade: (a, b) => b.dataset.grade - a.dataset.grade || a.dataset.rank - b.dataset.rank,
    name: (a, b) => a.dataset.name.localeCompare(b.dataset.name, undefined, { numeric: true }),
  };
  function update() {
    const wanted = form.elements.which.value;
    const text = form.elements.search.value.trim().toLowerCase();
    let shown = 0;
    rows.sort(orders[form.elements.order.value]).forEach(function (row) {
      const kind = wanted === "all" || row.dataset.refer === wanted || (wanted === "open" && !row.classList.contains("done"));
      const fits = kind && row.dataset.name.toLowerCase().includes(text);
      row.hidden = !fits;
      shown += fits;
      list.appendChild(row);
    });
    body.classList.toggle("blind", form.elements.blind.checked);
    byId("shown").textContent = say("controls.shown", { shown: shown, all: rows.length });
  }

  // ---- another threshold: a question, the list stays as it is
  const slider = byId("threshold");
  if (slider) {
    const curve = JSON.parse(byId("slider").dataset.curve);
    const own = Number(byId("slider").dataset.threshold);
    const ask = function () {
      const at = Number(slider.value);
      const u = curve.at[at];
      const here = rows.filter((row) => row.dataset.other === "yes" || Number(row.dataset.u) >= u).length;
      const shown = say("slider.at", { u: u.toFixed(3).replace(".", words.decimal) });
      const named = u === own ? shown + ", " + words["slider.own"] : shown;
      byId("at").textContent = named;
      slider.setAttribute("aria-valuetext", named);
      byId("here").textContent = counted(here, rows.length);
      byId("load").textContent = counted(curve.referred[at], curve.patients);
      byId("missed").textContent = curve.ill === null ? words["slider.unknown"] : counted(curve.missed[at], curve.ill);
    };
    slider.value = String(curve.at.indexOf(own));
    slider.addEventListener("input", ask);
    ask();
  }

  // ---- the enlarged view, to the original pixels
  const view = byId("view");
  const stage = view.querySelector(".stage");
  const picture = byId("view-picture");
  let looked = null;
  let scale = 0; // 0 is the whole picture
  function fitting() {
    return Math.min(stage.clientWidth / picture.naturalWidth, stage.clientHeight / picture.naturalHeight);
  }
  function zoom(wanted) {
    if (!picture.naturalWidth) return;
    const before = picture.clientWidth || 1;
    const middle = [(stage.scrollLeft + stage.clientWidth / 2) / before, (stage.scrollTop + stage.clientHeight / 2) / (picture.clientHeight || 1)];
    scale = wanted;
    const by = scale || fitting();
    picture.style.width = Math.max(1, Math.round(picture.naturalWidth * by)) + "px";
    picture.classList.toggle("sharp", by > 2);
    stage.scrollLeft = middle[0] * picture.clientWidth - stage.clientWidth / 2;
    stage.scrollTop = middle[1] * picture.clientHeight - stage.clientHeight / 2;
    const share = say("percent", { value: Math.round(100 * by) });
    byId("view-scale").textContent = say("view.scale", { scale: share, width: picture.naturalWidth, height: picture.naturalHeight }) + note;
  }
  const stepped = (by) => zoom(Math.min(8, Math.max(fitting(), (scale || fitting()) * by)));
  let note = "";
  let mapped = false;
  const veil = byId("view-map");
  const unseen = () => body.classList.contains("blind") && !looked.classList.contains("decided");
  function drawMap() {
    const [height, width, ...parts] = JSON.parse(looked.dataset.map);
    veil.width = width;
    veil.height = height;
    const brush = veil.getContext("2d");
    parts.forEach(function (part, at) {
      // Orange speaks for disease and blue against it; the fuller, the more.
      brush.fillStyle = (part > 0 ? "rgba(213, 94, 0, " : "rgba(0, 114, 178, ") + (0.7 * Math.abs(part)) / 100 + ")";
      brush.fillRect(at % width, Math.floor(at / width), 1, 1);
    });
    const most = parts.indexOf(Math.max(...parts));
    const where = { row: Math.floor(most / width) + 1, column: (most % width) + 1, rows: height, columns: width };
    byId("view-map-words").textContent = say("view.map_words", where);
  }
  function toggleMap() {
    mapped = !mapped;
    enlarge(looked);
  }
  function drawView() {
    const hidden = unseen();
    const small = looked.querySelector("img");
    byId("view-title").textContent = looked.getAttribute("aria-label");
    byId("view-answer").textContent = hidden || !small ? "" : small.alt;
    picture.alt = hidden || !small ? looked.getAttribute("aria-label") : small.alt;
    byId("view-decision").textContent = words["decide.paper"] + " " + (decisionWords(looked) || words["decide.none"]);
  }
  function enlarge(photo) {
    const small = photo.querySelector("img");
    if (!small) return;
    looked = photo;
    note = "";
    scale = 0;
    picture.onload = function () {
      zoom(0);
      zoom(scale); // the line above the picture has its words now
    };
    picture.onerror = function () {
      if (picture.src === small.src) return;
      veil.hidden = true;
      picture.classList.remove("mapped");
      byId("view-map-words").textContent = "";
      note = ". " + words["view.small"];
      picture.src = small.src;
    };
    picture.removeAttribute("style");
    const map = mapped && Boolean(photo.dataset.map) && !unseen();
    veil.hidden = !map;
    picture.classList.toggle("mapped", map);
    view.querySelector("[data-view=map]").setAttribute("aria-pressed", String(mapped));
    byId("view-map-words").textContent = mapped && !map ? words["view.map_none"] : "";
    picture.src = map ? photo.dataset.seen : photo.dataset.full || small.src;
    if (map) drawMap();
    else if (!photo.dataset.full) note = ". " + words["view.small"];
    drawView();
    if (!view.open) view.showModal();
    stage.focus();
  }
  const views = {
    close: () => view.close(), fit: () => zoom(0), original: () => zoom(1), larger: () => stepped(1.5), smaller: () => stepped(1 / 1.5),
    map: toggleMap, next: () => go(looked, 1, true), previous: () => go(looked, -1, true),
  };
  view.addEventListener("click", function (event) {
    const button = event.target.closest("[data-view]");
    if (button) views[button.dataset.view]();
  });
  view.addEventListener("close", function () {
    if (looked) looked.focus();
    looked = null;
  });
  window.addEventListener("resize", () => looked && !scale && zoom(0));

  // ---- keyboard
  function go(photo, by, enlarged) {
    const seen = Array.from(list.querySelectorAll("li:not([hidden]) figure.photo")).filter((each) => !enlarged || each.querySelector("img"));
    const to = seen[seen.indexOf(photo) + by];
    if (!to) return;
    if (enlarged) {
      enlarge(to);
    } else {
      to.focus();
      to.scrollIntoView({ block: "nearest" });
    }
  }
  function key(photo, event, enlarged) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = event.key.toLowerCase();
    const does = {
      j: () => go(photo, 1, enlarged), k: () => go(photo, -1, enlarged), a: () => decide(photo, "agree"),
      u: () => decide(photo, "ungradable"), x: () => decide(photo, ""), s: save,
      n: function () {
        if (enlarged) view.close();
        photo.querySelector("input[data-do=note]").focus();
      },
    };
    if (enlarged) Object.assign(does, { "+": views.larger, "=": views.larger, "-": views.smaller, f: views.fit, o: views.original, m: views.map, e: views.close });
    else does.e = () => enlarge(photo);
    const grade = /^[0-9]$/.test(pressed) ? grades[Number(pressed)] : null;
    if (grade) decide(photo, "other", grade[0]);
    else if (pressed in does) does[pressed]();
    else return;
    event.preventDefault();
  }
  list.addEventListener("keydown", function (event) {
    const photo = event.target.closest("figure.photo");
    if (!photo) return;
    if (event.target.matches("input, select")) {
      if (event.key === "Enter" || event.key === "Escape") photo.focus();
      return;
    }
    if (event.target === photo && event.key === "Enter") enlarge(photo);
    else key(photo, event, false);
  });
  view.addEventListener("keydown", (event) => key(looked, event, true));
  list.addEventListener("click", function (event) {
    const photo = event.target.closest("figure.photo");
    const control = event.target.closest("button[data-do]");
    if (!photo || !control) return;
    if (control.dataset.do === "enlarge") enlarge(photo);
    else decide(photo, control.getAttribute("aria-pressed") === "true" ? "" : control.dataset.do);
  });
  list.addEventListener("change", function (event) {
    if (event.target.matches("select")) decide(event.target.closest("figure.photo"), "other", event.target.value);
  });
  list.addEventListener("input", function (event) {
    if (event.target.matches("input[data-do=note]")) change(event.target.closest("figure.photo"), { note: event.target.value });
  });
  form.addEventListener("input", (event) => event.target !== form.elements.reader && update());
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.reader.value = made.reader;
  form.elements.reader.addEventListener("input", function (event) {
    made.reader = event.target.value;
    keep();
  });
  byId("save").addEventListener("click", save);
  byId("print").addEventListener("click", () => window.print());
  byId("load-file").addEventListener("change", function (event) {
    const file = event.target.files[0];
    if (file) file.text().then(load);
    event.target.value = "";
  });
  byId("clear").addEventListener("click", function () {
    if (!window.confirm(words["controls.clear_sure"])) return;
    made = { reader: made.reader, saved: true, by: {} };
    keep();
    photos.forEach(draw);
    count();
  });
  // What is folded on the screen is not on paper.
  const worth = byId("worth");
  if (worth) {
    let folded = false;
    window.addEventListener("beforeprint", function () {
      folded = !worth.open;
      worth.open = true;
    });
    window.addEventListener("afterprint", () => folded && (worth.open = false));
  }
  window.addEventListener("beforeunload", function (event) {
    if (!keeps && !made.saved) event.preventDefault();
  });

  for (const part of document.querySelectorAll(".scripted")) part.hidden = false;
  body.classList.add("running");
  photos.forEach(draw);
  count();
  update();
  if (!keeps) byId("told").textContent = words["controls.no_store"];
})();

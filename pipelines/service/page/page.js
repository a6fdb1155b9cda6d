// The search page: sends what the form says, shows rankings, keeps the address a link to what is shown.
"use strict";

const form = document.getElementById("form");
const query = document.getElementById("query");
const filter = document.getElementById("filter");
const status = document.getElementById("status");
const results = document.getElementById("results");
const live = document.getElementById("live");
const key = document.getElementById("key");
const NAMES = { dense: "Meaning (dense)", bm25: "Words (BM25)", hybrid: "Both (hybrid)" };
let asked = 0;

key.value = sessionStorage.getItem("key") || "";

function chosen(name) {
  return form.querySelector(`input[name=${name}]:checked`).value;
}

async function call(path, body) {
  const headers = { "content-type": "application/json" };
  if (key.value) headers["x-api-key"] = key.value;
  const options = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the service does not answer; is it still running?");
  }
  const content = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (response.status === 401) document.getElementById("key-field").hidden = false;
  if (!response.ok) throw new Error(content.error);
  return content;
}

function say(text, bad = false) {
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

async function describe() {
  try {
    const about = await call("live");
    const encoder = about.model ? `${about.model} (version ${about.model_version})` : about.encoder.slice(0, 12);
    const text =
      `${about.documents.toLocaleString()} documents · encoder ${encoder} · index ${about.factory}, ` +
      `${about.metric.replace("_", " ")} · version ${about.version}` +
      (about.misses_target ? ` · recall ${about.recall_at_10.toFixed(2)}, missed its target` : "") +
      (about.recall_is_stale ? " · recall measured before the index was changed" : "");
    if (live.textContent !== text) live.textContent = text; // a reader of screens tells every change
    live.title = about.workspace;
    live.classList.remove("bad");
    document.getElementById("filter-help").textContent =
      `columns: ${about.columns.join(", ")}; e.g. ${about.columns.includes("title") ? "title" : about.columns[0]} contains path`;
    document.getElementById("rerank-field").hidden = !about.cross_encoder;
  } catch (error) {
    live.textContent = error.message;
    live.classList.add("bad");
  }
}

function fill(element, text, words) {
  element.replaceChildren(
    ...markedParts(text, words).map(([part, marked]) => {
      if (!marked) return document.createTextNode(part);
      const mark = document.createElement("mark");
      mark.textContent = part;
      return mark;
    })
  );
}

function hitElement(hit, words, best) {
  const item = document.getElementById("hit").content.cloneNode(true).querySelector("li");
  const part = (name) => item.querySelector("." + name);
  const title = hit.title || hit.doc_id;
  part("rank").textContent = `${hit.rank}.`;
  fill(part("title"), title, words);
  fill(part("text"), hit.text, words);
  part("score").textContent = `score ${hit.score.toPrecision(4)}`;
  part("bar").firstElementChild.style.width = `${Math.max(2, Math.min(100, (100 * hit.score) / (best || 1)))}%`;
  part("id").textContent = hit.title ? `id ${hit.doc_id}` : "";
  const columns = Object.entries(hit.columns).filter(([, value]) => value !== null);
  part("columns").hidden = !columns.length;
  part("columns").textContent = columns.map(([name, value]) => `${name}: ${value}`).join(" · ");
  const like = part("like");
  like.setAttribute("aria-label", `More like ${title}`);
  like.addEventListener("click", () => search({ like: hit.doc_id, name: title }));
  const text = part("text");
  const whole = part("whole");
  text.classList.add("cut");
  whole.addEventListener("click", () => {
    const open = !text.classList.toggle("cut");
    whole.setAttribute("aria-expanded", String(open));
    whole.textContent = open ? "Show less" : "Show all";
  });
  const article = item.querySelector("article");
  article.dataset.id = hit.doc_id;
  article.setAttribute("aria-label", `${hit.rank}. ${title}`);
  return item;
}

function ranking(name, hits, words) {
  const part = document.createElement("section");
  part.className = "ranking";
  const heading = document.createElement("h2");
  heading.textContent = name;
  const list = document.createElement("ol");
  list.append(...hits.map((hit) => hitElement(hit, words, hits[0].score)));
  part.append(heading, list);
  if (!hits.length) part.append(Object.assign(document.createElement("p"), { textContent: "Nothing found." }));
  part.setAttribute("aria-label", name);
  return part;
}

// Long texts get a button once their height is known.
function offerWholeTexts() {
  for (const item of results.querySelectorAll(".hit")) {
    const text = item.querySelector(".text");
    item.querySelector(".whole").hidden = text.scrollHeight <= text.clientHeight + 2;
  }
}

async function search({ like = null, name = "" } = {}) {
  const number = ++asked;
  const text = query.value.trim();
  if (!like && !text) {
    results.replaceChildren();
    return say("Type a query first.", true);
  }
  sessionStorage.setItem("key", key.value);
  const k = Number(document.getElementById("k").value);
  const mode = chosen("mode");
  const modes = like ? ["dense"] : mode === "compare" ? ["dense", "bm25", "hybrid"] : [mode];
  const rerank = !like && document.getElementById("rerank").checked;
  const shared = { k, filter: filter.value.trim() || null };
  say("Searching …");
  const started = performance.now();
  try {
    const answers = await Promise.all(
      modes.map((one) => call("search", like ? { like, ...shared } : { query: text, mode: one, rerank, ...shared }))
    );
    if (number !== asked) return;
    const words = queryWords(like ? "" : text);
    const wasInside = results.contains(document.activeElement);
    results.classList.toggle("compare", answers.length > 1);
    results.replaceChildren(
      ...answers.map((answer, i) => ranking(like ? `Like “${name}”` : NAMES[modes[i]], answer.results[0].hits, words))
    );
    if (wasInside) results.focus(); // what had the focus is gone: go on from here, not from the top
    offerWholeTexts();
    const count = answers.map((answer) => answer.results[0].hits.length);
    say(`${count.join(" / ")} results in ${Math.round(performance.now() - started)} ms`);
    if (!like) remember(text, mode, k);
    describe();
  } catch (error) {
    if (number !== asked) return;
    results.replaceChildren();
    say(error.message, true);
  }
}

function remember(text, mode, k) {
  const parameters = new URLSearchParams({ q: text, mode, k });
  if (filter.value.trim()) parameters.set("filter", filter.value.trim());
  history.replaceState(null, "", "?" + parameters);
}

function recall() {
  const parameters = new URLSearchParams(location.search);
  const mode = form.querySelector(`input[name=mode][value="${CSS.escape(parameters.get("mode") || "")}"]`);
  if (mode) mode.checked = true;
  if (parameters.get("k")) document.getElementById("k").value = parameters.get("k");
  filter.value = parameters.get("filter") || "";
  query.value = parameters.get("q") || "";
  if (query.value) search();
}

function move(step) {
  const articles = [...results.querySelectorAll("article")];
  const at = articles.indexOf(document.activeElement.closest("article"));
  if (at + step < 0 || !articles.length) query.focus();
  else articles[Math.min(articles.length - 1, at + step)].focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
form.addEventListener("change", (event) => {
  if (event.target.name === "mode" || event.target.id === "k" || event.target.id === "rerank") {
    if (query.value.trim()) search();
  }
});
document.addEventListener("keydown", (event) => {
  const writing = event.target.matches("input:not([type=radio], [type=checkbox]), select");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !writing) {
    event.preventDefault();
    query.select();
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (!writing || event.target === query) && !event.target.matches("[type=radio]")) {
    if (event.target === query && event.key === "ArrowUp") return;
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "m" && !writing) {
    const article = event.target.closest("article");
    if (article) article.querySelector(".like").click();
  }
});
describe();
recall();

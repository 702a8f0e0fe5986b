// Search, filters, theme and copying. Without it every page is still complete: only the forms stay hidden.
"use strict";

const root = document.documentElement;

function remembered() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

if (remembered()) root.dataset.theme = remembered();

function toggleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* then it lasts for this page only */ }
}

// What is chosen lives behind the `#`, which works from a disk as well as from a server: `#q=words&release=4.53.3`.
// A `#` without `=` is a place on the page, as ever.
function chosen() {
  return new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
}

function choose(changes) {
  const now = chosen();
  for (const [name, value] of Object.entries(changes)) value ? now.set(name, value) : now.delete(name);
  history.replaceState(null, "", now.size ? `#${now}` : location.pathname + location.search);
  show();
}

function words(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

// Rows are [kind, title, text, page]. All words have to be there; those in the title count more.
function matches(query) {
  const wanted = words(query);
  if (!wanted.length) return [];
  const found = [];
  for (const row of window.SEARCH || []) {
    const title = row[1].toLowerCase(), all = `${row[0]} ${title} ${row[2].toLowerCase()}`;
    if (!wanted.every((word) => all.includes(word))) continue;
    found.push([wanted.filter((word) => title.includes(word)).length + (row[0] === "failure" ? 0.5 : 0), row]);
  }
  return found.sort((one, other) => other[0] - one[0]).map(([, row]) => row);
}

function element(tag, text, properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...properties });
}

function showFound(query) {
  const section = document.getElementById("found");
  section.hidden = !query.trim();
  if (section.hidden) return;
  const rows = matches(query), most = 50;
  const counted = rows.length === 1 ? "1 place" : `${rows.length} places`;
  section.querySelector(".count").textContent = rows.length ? `${counted} for “${query}”` : `Nothing for “${query}”.`;
  section.querySelector(".results").replaceChildren(...rows.slice(0, most).map(([kind, title, , page]) => {
    const item = document.createElement("li");
    item.append(element("span", `${kind} `, { className: "kind" }), element("a", title, { href: page }));
    return item;
  }));
}

function count(form, shown, all) {
  form.querySelector(".count").textContent = shown === all ? "" : `${shown} of ${all} shown`;
}

// The index: rows of the grid and cards, by what the failure is in the chosen release.
function filterFailures(form, release, status) {
  const rows = [...document.querySelectorAll("tr[data-failure]")], kept = new Set();
  for (const row of rows) {
    const cells = [...row.querySelectorAll(".cell")];
    const looked = cells.filter((cell) => !release || cell.dataset.release === release);
    const fits = (cell) => cell.dataset.status === status;
    if (!status || (status === "affected" ? looked.some(fits) : looked.length && looked.every(fits))) kept.add(row.dataset.failure);
    for (const cell of cells) cell.classList.toggle("chosen", !!release && cell.dataset.release === release);
  }
  for (const item of document.querySelectorAll("[data-failure]")) item.hidden = !kept.has(item.dataset.failure);
  count(form, kept.size, rows.length);
}

// A failure's page: claims, by their verdict in the chosen release, or in any.
function filterClaims(form, release, verdict) {
  const claims = [...document.querySelectorAll(".claim")];
  for (const claim of claims) {
    const verdicts = JSON.parse(claim.dataset.verdicts);
    const here = release ? [verdicts[release]].filter(Boolean) : Object.values(verdicts);
    claim.hidden = !!(release || verdict) && !here.some((found) => !verdict || found === verdict);
    let here_ = claim.querySelector(".here");
    if (!here_) claim.querySelector(".stretches").before(here_ = element("p", "", { className: "here where" }));
    here_.textContent = release && verdicts[release] ? `In ${release}: ${verdicts[release]}` : "";
  }
  count(form, claims.filter((claim) => !claim.hidden).length, claims.length);
}

function show() {
  const now = chosen(), query = now.get("q") || "";
  const search = document.querySelector(".search input");
  if (search.value !== query) search.value = query;
  showFound(query);
  const form = document.querySelector(".filters");
  if (form) {
    for (const select of form.querySelectorAll("select")) {
      const wanted = now.get(select.name) || "";
      select.value = [...select.options].some((option) => option.value === wanted) ? wanted : "";
    }
    const value = (name) => form.elements[name]?.value || "";
    if (form.elements.verdict) filterClaims(form, value("release"), value("verdict"));
    else filterFailures(form, value("release"), value("status"));
  }
  reveal();
}

// A link to a claim ends the filter. The browser could not go to what that filter hid: go there now, the keyboard too.
function reveal() {
  const place = location.hash && !location.hash.includes("=") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!place) return;
  place.scrollIntoView();
  if (place.tabIndex === -1 && place.hasAttribute("tabindex")) place.focus({ preventScroll: true });
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const item of document.querySelectorAll("[data-needs-script]")) item.hidden = false;
  document.querySelector(".theme").addEventListener("click", toggleTheme);
  const search = document.querySelector(".search");
  search.addEventListener("submit", (event) => { event.preventDefault(); choose({ q: search.elements.q.value }); });
  search.addEventListener("input", () => choose({ q: search.elements.q.value }));
  for (const select of document.querySelectorAll(".filters select")) {
    select.addEventListener("change", () => choose({ [select.name]: select.value }));
  }
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.elements.q.focus();
    } else if (event.key === "Escape" && typing === search.elements.q) choose({ q: "" });
  });
  addEventListener("hashchange", show);
  show();
});

"use strict";
// Every text of a run is in the page as text: what is put in here was parsed without running anything.
const heading = (part) => part.tagName + (part.querySelector("h2") ? part.querySelector("h2").firstChild.textContent : "");
let tag = "";

function take(part, before) {
  const opened = (one) => [...one.querySelectorAll("details")].map((each) => [each.querySelector("summary").textContent, each]);
  const known = new Map(opened(before));
  for (const [name, each] of opened(part)) if (known.has(name)) each.open = known.get(name).open;
  if (part.outerHTML === before.outerHTML) return before;
  const places = [...before.querySelectorAll(".scroll, .tall, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
  before.replaceWith(part);
  part.querySelectorAll(".scroll, .tall, pre").forEach((one, at) => places[at] && one.scrollTo(...places[at]));
  return part;
}

function show(page) {
  const main = document.querySelector("main");
  const known = new Map([...main.children].map((part) => [heading(part), part]));
  const parts = [...page.querySelector("main").children].map((part) =>
    known.has(heading(part)) ? take(part, known.get(heading(part))) : part);
  if (parts.length !== main.children.length || parts.some((part, at) => part !== main.children[at])) main.replaceChildren(...parts);
  document.title = page.title;
}

async function refresh() {
  let text = "live";
  try {
    const answer = await fetch(location.href, { cache: "no-store", headers: { "If-None-Match": tag } });
    if (answer.ok) {
      tag = answer.headers.get("ETag");
      show(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } else if (answer.status !== 304) text = await answer.text();
  } catch { text = "no longer live: orchestrate report --follow has ended"; }
  document.getElementById("live").textContent = text;
}

async function follow() {
  if (!document.hidden) await refresh();
  setTimeout(follow, 2000);
}

if (location.protocol !== "file:") follow(); // a page that was saved stays as it was

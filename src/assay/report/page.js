"use strict";
const data = JSON.parse(document.getElementById("report-data").textContent);

for (const [id, figure] of Object.entries(data.figures)) {
  const options = { displaylogo: false, responsive: true, displayModeBar: false };
  Plotly.newPlot(id, figure.data, figure.layout, options);
}

// Show only one executor or verdict in the table.
for (const button of document.querySelectorAll(".filters button")) {
  button.addEventListener("click", () => {
    for (const other of button.parentElement.children) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    const wanted = button.dataset.filter;
    for (const row of document.querySelectorAll("#verdicts > tbody > tr")) {
      row.hidden = wanted !== "" && row.dataset.label !== wanted && row.dataset.verdict !== wanted;
    }
  });
}

// Open the strip a table row points at.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
window.addEventListener("hashchange", openTarget);
openTarget();

// Both top lists of the token under the pointer. Text goes in by textContent only.
const tip = document.getElementById("tip");

function cell(row, text, kind) {
  const element = document.createElement(kind || "td");
  element.textContent = text;
  row.append(element);
  return element;
}

function number(value) {
  return value === null || value === undefined ? "impossible" : value.toFixed(3);
}

function describe(token) {
  tip.replaceChildren();
  const head = document.createElement("div");
  const distance = token.d === null ? "not comparable" : token.d.toFixed(4);
  head.textContent = `token ${token.i}: ${token.name}   distance ${distance}`;
  head.className = "chosen";
  const table = document.createElement("table");
  const titles = document.createElement("tr");
  for (const title of ["claimed", "log p", "validator", "log p"]) cell(titles, title, "th");
  table.append(titles);
  for (let line = 0; line < Math.max(token.claim.length, token.ours.length); line += 1) {
    const row = document.createElement("tr");
    for (const entry of [token.claim[line], token.ours[line]]) {
      const name = cell(row, entry ? entry[0] : "");
      const value = cell(row, entry ? number(entry[1]) : "");
      if (entry && entry[0] === token.name) {
        name.className = "chosen";
        value.className = "chosen";
      }
    }
    table.append(row);
  }
  tip.append(head, table);
}

function place(event) {
  const gap = 14;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + gap, window.innerWidth - box.width - gap);
  const below = event.clientY + gap + box.height < window.innerHeight;
  tip.style.left = `${Math.max(gap, left)}px`;
  tip.style.top = `${below ? event.clientY + gap : event.clientY - gap - box.height}px`;
}

document.addEventListener("mouseover", (event) => {
  const span = event.target.closest ? event.target.closest(".t") : null;
  if (span === null) {
    tip.hidden = true;
    return;
  }
  const strip = data.strips[span.parentElement.dataset.strip];
  describe(strip[Number(span.dataset.i)]);
  tip.hidden = false;
  place(event);
});
document.addEventListener("mousemove", (event) => {
  if (!tip.hidden) place(event);
});

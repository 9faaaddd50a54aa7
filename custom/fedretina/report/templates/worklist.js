"use strict";
(function () {
  const list = document.getElementById("patients");
  const rows = Array.from(list.children);
  const form = document.getElementById("controls");
  const shown = document.getElementById("shown");
  const orders = {
    first: (a, b) => a.dataset.rank - b.dataset.rank,
    doubt: (a, b) => b.dataset.u - a.dataset.u || a.dataset.rank - b.dataset.rank,
    grade: (a, b) => b.dataset.grade - a.dataset.grade || a.dataset.rank - b.dataset.rank,
    name: (a, b) => a.dataset.name.localeCompare(b.dataset.name, undefined, { numeric: true }),
  };
  function update() {
    const wanted = form.elements.which.value;
    const text = form.elements.search.value.trim().toLowerCase();
    let count = 0;
    rows.sort(orders[form.elements.order.value]).forEach(function (row) {
      const fits = (wanted === "all" || row.dataset.refer === wanted) && row.dataset.name.toLowerCase().includes(text);
      row.hidden = !fits;
      count += fits;
      list.appendChild(row);
    });
    shown.textContent = count + " of " + rows.length + " patients shown";
  }
  form.hidden = false;
  form.addEventListener("input", update);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  update();
})();

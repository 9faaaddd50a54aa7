// For readers without a mouse or without sight: tables that are wider than the page scroll by the arrow keys, once the
// Tab key has come to them, and the search has a name.
addEventListener("load", function () {
  document.querySelector(".md-search").setAttribute("aria-label", "Search");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
});

// A click on the head of a column sorts the table by it: by number where every cell begins with one, else by text.
const number = (text) => parseFloat(text.replace(/,/g, ""));

function sort(head) {
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const text = (row) => row.cells[column]?.textContent.trim() ?? "";
  const up = head.ariaSort !== "ascending", rows = [...body.rows];
  const numeric = rows.every((row) => !text(row) || !isNaN(number(text(row))));
  rows.sort((a, b) => (!text(a) - !text(b)) || (up ? 1 : -1) *
    (numeric ? number(text(a)) - number(text(b)) : text(a).localeCompare(text(b))));
  for (const other of head.parentNode.cells) other.ariaSort = "none";
  head.ariaSort = up ? "ascending" : "descending";
  body.append(...rows);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table:has(thead):not(:has([rowspan], [colspan]))"))
    for (const head of table.tHead.rows[0].cells) {
      head.ariaSort = "none";
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(head));
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort(head));
    }
  for (const link of document.querySelectorAll("article a[download]")) link.removeAttribute("download");
  for (const image of document.querySelectorAll("article .cell_output img, article p > img")) {
    const link = document.createElement("a");  // a touch opens a figure by itself, to be enlarged
    link.href = image.src;
    image.replaceWith(link);
    link.append(image);
  }
});

// A page that was opened as a file may not read others: its search shows titles alone.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

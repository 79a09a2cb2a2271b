// What scrolls sideways can be scrolled by keyboard: wide tables, long lines and pictures.
addEventListener("load", () => {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset .picture")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
});

// The search of the site: guides come before reference, and pages before single options.
var Scorer = {
  score: ([page, title, anchor, description, score, filename, kind]) =>
    score +
    (/^(index$|tutorials\/|how-to\/)/.test(page) ? 12 : 0) -
    (/^(changelog|contributing\/|genindex)/.test(page) ? 4 : 0) -
    (kind === "object" || kind === "index" ? 12 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

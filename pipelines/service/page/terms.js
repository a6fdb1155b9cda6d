// Marking the query's words in a text: parts of [text, isMarked], from which the page builds nodes, never HTML.
// Words of one letter and the commonest English words are left alone unless the query has nothing else.
"use strict";

const COMMON = new Set(
  "a an and are as at be by do does for from how i if in into is it its of on or that the this to was what when where which who why will with".split(" ")
);

function queryWords(query) {
  const words = query.toLowerCase().match(/[\p{L}\p{N}]+/gu) || [];
  const telling = words.filter((word) => word.length > 1 && !COMMON.has(word));
  return new Set(telling.length ? telling : words);
}

// A word of the text is marked if it is a word of the query, give or take an English plural ending.
function sameWord(word, wanted) {
  const lower = word.toLowerCase();
  if (wanted.has(lower) || wanted.has(lower + "s") || wanted.has(lower + "es")) return true;
  if (lower.endsWith("s") && wanted.has(lower.slice(0, -1))) return true;
  return lower.endsWith("es") && wanted.has(lower.slice(0, -2));
}

function markedParts(text, wanted) {
  const parts = [];
  let plain = "";
  for (const piece of text.split(/([\p{L}\p{N}]+)/u)) {
    if (piece && /^[\p{L}\p{N}]/u.test(piece) && sameWord(piece, wanted)) {
      if (plain) parts.push([plain, false]);
      parts.push([piece, true]);
      plain = "";
    } else {
      plain += piece;
    }
  }
  if (plain) parts.push([plain, false]);
  return parts;
}

if (typeof module !== "undefined") module.exports = { queryWords, markedParts };

/**
 * The conversation as a text file of the caller's.
 */

/** @typedef {import("./conversation.js").Line} Line */

const NAMES = { caller: "You", service: "Duplex", note: "·" };

/** Save it where the browser keeps downloads. @param {readonly Line[]} lines */
export function saveTranscript(lines) {
  const text = `${document.title}, ${new Date().toLocaleString()}\n\n${transcriptOf(lines)}\n`;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = `duplex-${new Date().toISOString().slice(0, 16).replace(":", "")}.txt`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 0);
}

/** One line each, and of a reply that was cut what was heard. @param {readonly Line[]} lines */
function transcriptOf(lines) {
  return lines
    .filter((line) => line.text)
    .map((line) => {
      const mark = line.status === "cut" ? " [interrupted]" : line.status === "pending" ? " [not sent]" : "";
      return `${line.at.toLocaleTimeString()}  ${NAMES[line.speaker]}: ${line.text}${mark}`;
    })
    .join("\n");
}

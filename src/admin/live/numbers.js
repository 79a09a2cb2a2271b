// Formats numbers.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

function count(number) {
  return number === null || number === undefined || Number.isNaN(number) ? "–" : whole.format(number);
}

/** One decimal below 10, none above. */
function rounded(number) {
  return (number > 0 && number < 10 ? tenths : whole).format(number);
}

function rate(number) {
  return number === null ? "–" : `${rounded(number)}/s`;
}

function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit + 1 < units.length) {
    number /= 1024;
    unit += 1;
  }
  return `${(unit > 0 && number < 10 ? tenths : whole).format(number)} ${units[unit]}`;
}

function seconds(number) {
  if (number < 120) return `${whole.format(number)} s`;
  if (number < 7200) return `${whole.format(Math.floor(number / 60))} min`;
  if (number < 172_800) return `${whole.format(Math.floor(number / 3600))} h`;
  return `${whole.format(Math.floor(number / 86_400))} d`;
}

function millis(number) {
  if (number === null) return "–";
  if (number >= 10_000) return seconds(number / 1000);
  return `${rounded(number)} ms`;
}

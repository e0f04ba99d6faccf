// Formats numbers and times for people, and makes links to the views.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

/** Formats a number, such as `12,345`. */
export function count(number) {
  return number === undefined || number === null ? '' : whole.format(number);
}

/** Formats a number with its noun, such as `1 endpoint` or `2 endpoints`. */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Abbreviates a number, such as `0.3`, `12` or `1.2 k`. */
export function scaled(number) {
  if (number === undefined || number === null) return '';
  if (number >= 1e9) return `${tenths.format(number / 1e9)} G`;
  if (number >= 1e6) return `${tenths.format(number / 1e6)} M`;
  if (number >= 1e4) return `${tenths.format(number / 1e3)} k`;
  return number >= 100 ? whole.format(number) : tenths.format(number);
}

/** Formats a number of bytes, such as `512 B` or `1.5 KiB`. */
export function bytes(number) {
  if (number === undefined || number === null) return '';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let at = 0;
  let left = number;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${left >= 100 || at === 0 ? whole.format(left) : tenths.format(left)} ${units[at]}`;
}

/** Formats a duration, such as `0.3 s`, `42 s`, `3 min 5 s`, `2 h 7 min` or `12 d 3 h`. */
export function duration(seconds) {
  if (seconds === undefined || seconds === null) return '';
  if (seconds < 10) return `${tenths.format(seconds)} s`;
  const s = Math.round(seconds);
  const two = (big, bigUnit, small, smallUnit) =>
    small === 0 ? `${big} ${bigUnit}` : `${big} ${bigUnit} ${small} ${smallUnit}`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return two(Math.floor(s / 60), 'min', s % 60, 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor((s % 3600) / 60), 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor((s % 86400) / 3600), 'h');
}

/** Formats a share as a percentage, such as `33.3 %`. */
export function percent(share) {
  const hundredths = share * 100;
  if (hundredths > 0 && hundredths < 0.1) return 'under 0.1 %';
  return `${tenths.format(hundredths)} %`;
}

/** Formats the time of an RFC 3339 date with its zone, and the date if it is not today. */
export function moment(text) {
  const date = text instanceof Date ? text : new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  const isToday = date.toDateString() === new Date().toDateString();
  const withZone = { timeZoneName: 'short' };
  return isToday ? date.toLocaleTimeString(undefined, withZone) : date.toLocaleString(undefined, withZone);
}

/** Formats a port, such as `http 80/TCP` or `80/TCP`. */
export function portName(port) {
  const number = `${port.port}/${port.protocol}`;
  return port.name ? `${port.name} ${number}` : number;
}

/** Returns a link within the page: `link(['services', 'default', 'web'], {search: 'x'})`. */
export function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

/** Returns a path of the API relative to `/ui/`, so that it works behind a proxy that adds a prefix. */
export function api(path, query = {}) {
  return `../api/v1/${link(path, query).slice(2)}`;
}

/** Returns the link to the view of a Service. */
export function serviceLink({ namespace, name }) {
  return link(['services', namespace, name]);
}

// The page: chooses the view by the address, polls the daemon, handles keys, and reports a daemon that
// does not answer. Views only load and draw.

import { h, show, state } from './dom.js';
import { ask, poll, Refusal } from './poll.js';
import { Rates } from './rates.js';
import { api, link, moment } from './words.js';
import * as overview from './overview.js';
import * as services from './services.js';
import * as service from './service.js';
import * as explain from './explain.js';
import * as top from './top.js';

const main = document.getElementById('main');
const gone = document.getElementById('gone');
/** Period in polls of the status request that updates the page's head, in views other than the overview. */
const STATUS_EACH = 5;

let stop = () => {};
let shown = null;
let status = null;
let goneSince = null;
/** The list that Escape returns to from a Service. */
let lastList = link(['services']);

/** Returns the view for an address like `#/services/default/web?x=y`, with its parts. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const parts = path.split('/').filter(Boolean).map(decoded);
  const asked = new URLSearchParams(query ?? '');
  switch (parts[0]) {
    case undefined:
      return { view: overview, tab: 'overview', key: 'overview', parts, asked };
    case 'services':
      return parts.length >= 3
        ? { view: service, tab: 'services', key: `service ${parts[1]}/${parts[2]}`, parts, asked }
        : { view: services, tab: 'services', key: 'services', parts, asked };
    case 'explain':
      return { view: explain, tab: 'explain', key: 'explain', parts, asked };
    case 'top':
      return { view: top, tab: 'top', key: 'top', parts, asked };
    default:
      return { view: null, tab: '', key: 'nowhere', parts, asked };
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function go() {
  stop();
  const place = route();
  const isNew = shown?.key !== place.key;
  // State of the view between polls: the answer, rates, and lists that are shown in full.
  const memory = isNew ? { rates: new Rates(), all: new Set() } : shown.memory;
  shown = { ...place, memory };
  if (place.view === services) lastList = location.hash;
  for (const tab of document.querySelectorAll('nav a')) {
    if (tab.dataset.view === place.tab) tab.setAttribute('aria-current', 'page');
    else tab.removeAttribute('aria-current');
  }
  if (!place.view) {
    document.title = 'kube-proxy';
    show(main, h('p', { 'data-key': 'nowhere' }, 'This address has no view. Go to the ', h('a', { href: '#/' }, 'Overview'), '.'));
    return;
  }
  titled();
  if (isNew) {
    main.replaceChildren(h('p', { class: 'quiet' }, 'Asking kube-proxy…'));
    window.scrollTo(0, 0);
    place.view.begin?.(main, place, memory);
  }
  stop = poll((signal, number) => turn(place, memory, signal, number));
}

function titled() {
  const node = status ? ` · ${status.node}` : '';
  document.title = `${shown.view?.title(shown) ?? ''}${node} · kube-proxy`;
}

async function turn(place, memory, signal, number) {
  // After missing answers, asks for the status: a restarted daemon may have another mode or version.
  const isStatus = place.view === overview || number % STATUS_EACH === STATUS_EACH - 1 || !status || goneSince;
  const isView = place.view !== overview && (number % STATUS_EACH !== STATUS_EACH - 1 || !memory.answer);
  try {
    if (isStatus) {
      const answer = await ask(api(['status']), signal);
      status = answer;
      head();
    }
    if (place.view === overview) memory.answer = status;
    else if (isView) {
      memory.answer = await place.view.load(place, signal);
      memory.rates.turn();
    }
    memory.refusal = null;
    back();
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Refusal) {
      memory.refusal = error;
      back();
    } else {
      lost();
      if (!memory.answer && !memory.refusal) return;
    }
  }
  if (signal.aborted) return;
  draw(place, memory);
}

function draw(place, memory) {
  if (memory.refusal) {
    const says = h('p', { class: 'refusal', role: 'status', 'data-key': 'refusal' }, memory.refusal.message);
    if (place.view.refused) place.view.refused(main, place, says);
    else show(main, says);
  } else if (memory.answer) {
    place.view.draw(main, place, memory);
  }
}

/** Draws the page's head: the node and its state. */
function head() {
  const { node, mode, families, version, kubernetes } = status;
  show(document.getElementById('node'), [node, mode].filter(Boolean).join(' · '));
  show(document.getElementById('standing'), families.length > 0 ? families.map((family) => overview.standing(family)) : state('busy', 'starting'));
  show(document.getElementById('version'), `version ${version}, as Kubernetes ${kubernetes}`);
  titled();
}

function lost() {
  goneSince ??= new Date();
  document.body.classList.add('is-gone');
  gone.hidden = false;
  show(gone, `kube-proxy has not answered since ${moment(goneSince)}: it has stopped, is starting, or the port-forward has ended. `
    + 'Below is the last known state. The page retries every few seconds.');
  show(document.getElementById('standing'), state('off', 'no answer'));
}

function back() {
  if (!goneSince) return;
  goneSince = null;
  gone.hidden = true;
  gone.replaceChildren();
  document.body.classList.remove('is-gone');
  if (status) head();
}

function isTyped(element) {
  return element instanceof HTMLInputElement || element instanceof HTMLSelectElement;
}

/** Moves the focus to the next or previous link of the list, or to the first link from outside the list. */
function along(step) {
  const links = [...main.querySelectorAll('[data-row]')].filter((each) => each.offsetParent);
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? links[0] : links[at + step];
  next?.focus();
  next?.scrollIntoView({ block: 'nearest' });
  return next !== undefined;
}

/** Returns the address that Escape leads to. */
function above() {
  if (shown.view === service) return lastList;
  const [, namespace, name] = /^([^/]+)\/([^/:]+)/.exec(shown.asked.get('to') ?? '') ?? [];
  return shown.view === explain && name ? link(['services', namespace, name]) : '#/';
}

function search() {
  const field = document.getElementById('search');
  if (field) field.select();
  else {
    sessionStorage.setItem('focus', 'search');
    location.hash = lastList;
  }
}

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isField = isTyped(event.target);
  if (event.key === 'Escape') {
    if (isField) event.target.blur();
    else location.hash = above();
  } else if (event.key === '/' && !isField) {
    event.preventDefault();
    search();
  } else if (event.key === 'ArrowDown' && (!isField || event.target.id === 'search')) {
    if (along(1)) event.preventDefault();
  } else if (event.key === 'ArrowUp' && !isField) {
    if (along(-1)) event.preventDefault();
  }
});
main.addEventListener('click', (event) => {
  const button = event.target.closest?.('button[data-all]');
  if (!button) return;
  shown.memory.all.add(button.dataset.all);
  draw(shown, shown.memory);
});
document.querySelector('[data-skip]').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener('hashchange', go);
go();

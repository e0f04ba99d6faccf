// Services by namespace, a page at a time. The daemon filters and sorts Services, so the browser holds one
// page even of 50,000 Services.

import { h, notes, show, state, table } from './dom.js';
import { ask } from './poll.js';
import { api, bytes, count, counted, link, portName, scaled, serviceLink } from './words.js';

const PAGE = 100;
const TYPING_PAUSE = 200;

export const title = ({ asked }) => (asked.get('search') ? `Services: ${asked.get('search')}` : 'Services');

/** Draws the search field and an empty list. */
export function begin(main, { asked }) {
  const field = h('input', {
    id: 'search', type: 'search', autocomplete: 'off', spellcheck: 'false', enterkeyhint: 'search',
    placeholder: 'Namespace or name', 'aria-label': 'Search Services', 'aria-describedby': 'found',
  });
  field.value = asked.get('search') ?? '';
  const form = h('form', { role: 'search' }, field, h('span', { id: 'found', role: 'status', class: 'quiet' }));
  let typing;
  const look = () => {
    clearTimeout(typing);
    const now = new URLSearchParams(location.hash.split('?')[1] ?? '');
    const wanted = link(['services'], { namespace: now.get('namespace'), search: field.value.trim() });
    if (wanted === location.hash) return;
    // Replaces the history entry, so that typing a word adds no entry for each letter.
    history.replaceState(null, '', wanted);
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  };
  field.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(look, TYPING_PAUSE);
  });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    look();
    main.querySelector('[data-row]')?.focus();
  });
  main.replaceChildren(h('h1', null, 'Services'), form, h('div', { id: 'services' }, h('p', { class: 'quiet' }, 'Asking kube-proxy…')));
  if (sessionStorage.getItem('focus') === 'search') field.focus();
  sessionStorage.removeItem('focus');
}

export function load({ asked }, signal) {
  const { namespace, search, after } = Object.fromEntries(asked);
  return ask(api(['services'], { namespace, search, after, limit: PAGE, counters: true }), signal);
}

export function refused(_main, _place, says) {
  show(document.getElementById('services'), says);
}

export function draw(_main, { asked }, memory) {
  const field = document.getElementById('search');
  const search = asked.get('search') ?? '';
  if (document.activeElement !== field) field.value = search;
  const { items, total, next } = memory.answer;
  show(document.getElementById('found'), found(items, total, asked));
  show(
    document.getElementById('services'),
    chosen(asked),
    notes(memory.answer.notes),
    items.length === 0 ? h('p', { 'data-key': 'nothing' }, nothing(asked)) : listed(items, memory),
    pages(asked, next),
  );
}

function found(items, total, asked) {
  if (items.length === total) return counted(total, 'Service');
  const from = asked.get('after') ? ', further on' : '';
  return `${count(items.length)} of ${counted(total, 'Service')}${from}`;
}

/** Returns the text of an empty list, with the next step. */
function nothing(asked) {
  const search = asked.get('search');
  const namespace = asked.get('namespace');
  const where = namespace ? ` in namespace ${namespace}` : '';
  if (!search) {
    const scope = namespace ? `-n ${namespace}` : '-A';
    return [`This node proxies no Service${where}. Compare with `, h('code', null, `kubectl get services ${scope}`),
      ': headless and ExternalName Services are not proxied. ', h('a', { href: '#/' }, 'Overview'), ' names the source and its errors.'];
  }
  const traced = link(['explain'], { to: search, from: 'pod' });
  return [`No Service${where} matches “${search}”. The search covers namespaces and names. For an address, `,
    h('a', { href: traced }, 'trace a packet'), ' to ADDRESS:PORT.'];
}

/** Names the namespace of the list, with a link to all namespaces. */
function chosen(asked) {
  const namespace = asked.get('namespace');
  if (!namespace) return null;
  const all = link(['services'], { search: asked.get('search') });
  return h('p', { 'data-key': 'chosen' }, 'Namespace ', h('b', null, namespace), ' · ', h('a', { href: all }, 'all namespaces'));
}

function pages(asked, next) {
  const query = { namespace: asked.get('namespace'), search: asked.get('search') };
  const links = [
    asked.get('after') && h('a', { href: link(['services'], query), 'data-key': 'first' }, 'First page'),
    next && h('a', { href: link(['services'], { ...query, after: next }), 'data-key': 'next', rel: 'next' }, 'Next page'),
  ].filter(Boolean);
  return links.length > 0 ? h('nav', { class: 'pages', 'aria-label': 'Pages', 'data-key': 'pages' }, links) : null;
}

const COLUMNS = [
  { title: 'Service' }, { title: 'Type' }, { title: 'Port' }, { title: 'Addresses' }, { title: 'Endpoints' },
  { title: 'New/s', number: true }, { title: 'Bytes/s', number: true },
];

function listed(items, memory) {
  const byNamespace = Map.groupBy(items, (service) => service.namespace);
  return [...byNamespace].map(([namespace, services]) => {
    const only = link(['services'], { namespace });
    return h(
      'section',
      { 'data-key': `namespace ${namespace}` },
      h('h2', null, h('a', { href: only }, namespace), h('span', { class: 'quiet' }, ` ${count(services.length)}`)),
      table(`Services of namespace ${namespace}`, COLUMNS, services.flatMap((service) => rows(service, memory.rates))),
    );
  });
}

/** Returns a row for each port. */
function rows(service, rates) {
  const name = `${service.namespace}/${service.name}`;
  const called = [
    h('a', { href: serviceLink(service), 'data-row': true }, service.name),
    service.errors?.length ? [' ', state('warn', counted(service.errors.length, 'error'))] : null,
  ];
  if (service.ports.length === 0) return [{ key: name, cells: [called, service.type, 'none', '', '', '', ''] }];
  return service.ports.map((port, at) => {
    const rate = rates.of(`${name} ${portName(port)}`, port.counters);
    return {
      key: `${name} ${portName(port)}`,
      tone: at > 0 ? 'more' : null,
      cells: [
        at === 0 ? called : '',
        at === 0 ? service.type : '',
        portName(port),
        addresses(port),
        endpoints(port.endpointCounts),
        scaled(rate?.connections),
        bytes(rate?.bytes),
      ],
    };
  });
}

function addresses(port) {
  const [first, ...others] = port.addresses;
  if (!first) return '';
  return [h('code', null, first.at), others.length > 0 ? h('span', { class: 'quiet' }, ` and ${count(others.length)} more`) : null];
}

/** Formats the numbers of endpoints that receive traffic (in), that do not (out), and that drain. */
export function endpoints({ total, used, draining }) {
  const drains = draining > 0 ? `, ${count(draining)} draining` : '';
  if (total === 0) return state('off', `none${drains}`);
  const out = total - used;
  const text = `${count(used)} in${out > 0 ? `, ${count(out)} out` : ''}${drains}`;
  if (used === 0) return state('warn', text);
  return text;
}

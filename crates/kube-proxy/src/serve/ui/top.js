// The busiest Services now. The daemon computes the rates from two samples of the kernel's counters.

import { h, notes, section, show, state, table, terms } from './dom.js';
import { ask } from './poll.js';
import { api, bytes, count, link, portName, scaled, serviceLink } from './words.js';

const LIMIT = 50;

export const title = () => 'Top';

const ORDERS = {
  connections: ['new connections', (rate) => rate.connections],
  packets: ['packets', (rate) => rate.packetsIn + rate.packetsOut],
  bytes: ['bytes', (rate) => rate.bytesIn + rate.bytesOut],
};

function ordered(asked) {
  return Object.hasOwn(ORDERS, asked.get('sort')) ? asked.get('sort') : 'connections';
}

export function load({ asked }, signal) {
  return ask(api(['top'], { limit: LIMIT, sort: ordered(asked) }), signal);
}

export function draw(main, { asked }, { answer }) {
  const order = ordered(asked);
  const { total } = answer;
  show(
    main,
    h('h1', { 'data-key': 'title' }, 'Top'),
    h('div', { class: 'figures', 'data-key': 'figures' }, answer.seconds > 0 ? terms(
      ['New connections/s', scaled(total.connections)],
      ['Packets/s in, out', `${scaled(total.packetsIn)}, ${scaled(total.packetsOut)}`],
      ['Bytes/s in, out', `${bytes(total.bytesIn)}, ${bytes(total.bytesOut)}`],
      ['Draining', count(answer.draining)],
      ['Pending', count(answer.pending)],
      ['Refused', answer.failing > 0 ? state('warn', count(answer.failing)) : '0'],
    ) : h('p', { class: 'quiet' }, 'Measuring: rates need two samples of the counters. The next sample comes within a few seconds.')),
    notes(answer.notes),
    h('p', { class: 'orders', 'data-key': 'orders' }, 'By ', Object.entries(ORDERS).map(([each, [words]], at) => [
      at > 0 ? ' · ' : '',
      h('a', { href: link(['top'], { sort: each }), 'aria-current': each === order ? 'true' : null }, words),
    ])),
    answer.seconds > 0 && section('Service ports', ports(answer.ports, order)),
    answer.seconds > 0 && section('Endpoints', endpoints(answer.endpoints, order)),
  );
}

const RATES = [
  { title: 'New/s', number: true }, { title: 'Packets/s', number: true }, { title: 'Bytes/s', number: true },
];

/** Sorts rows by rate, and adds to each row its rate relative to the highest rate. */
function sorted(all, order) {
  const [, by] = ORDERS[order];
  const most = all.reduce((largest, each) => Math.max(largest, by(each.rate)), 0);
  return [...all]
    .sort((one, other) => by(other.rate) - by(one.rate))
    .map((each) => ({ ...each, share: most > 0 ? by(each.rate) / most : 0 }));
}

function rates({ connections, packetsIn, packetsOut, bytesIn, bytesOut }) {
  return [scaled(connections), scaled(packetsIn + packetsOut), bytes(bytesIn + bytesOut)];
}

function bar(share) {
  return share > 0 && h('span', { class: 'bar', 'aria-hidden': 'true', vars: { '--share': `${share * 100}%` } });
}

function ports(all, order) {
  if (all.length === 0) return h('p', { class: 'quiet' }, NOTHING);
  const columns = [
    { title: 'Service' }, { title: 'Port' }, ...RATES, { title: 'Connections so far', number: true }, { title: 'Active', number: true }, { title: '' },
  ];
  return table('The busiest Service ports', columns, sorted(all, order).map((port) => ({
    key: `${port.namespace}/${port.name} ${port.port}/${port.protocol}`,
    cells: [
      h('a', { href: serviceLink(port), 'data-row': true }, `${port.namespace}/${port.name}`),
      portName({ ...port, name: port.portName }),
      ...rates(port.rate),
      count(port.counters.connections),
      count(port.counters.active),
      bar(port.share),
    ],
  })));
}

/** Text that is shown if no counter has grown. */
const NOTHING = 'No traffic between the last two samples. Check with “Trace a packet” that packets reach this node.';

function endpoints(all, order) {
  if (all.length === 0) return h('p', { class: 'quiet' }, NOTHING);
  const columns = [
    { title: 'Endpoint' }, { title: 'Service' }, ...RATES, { title: 'Connections so far', number: true }, { title: 'Active', number: true }, { title: '' },
  ];
  return table('The busiest endpoints', columns, sorted(all, order).map((endpoint) => ({
    key: `${endpoint.namespace}/${endpoint.name} ${endpoint.portName} ${endpoint.at}`,
    cells: [
      h('code', null, endpoint.at),
      h('a', { href: serviceLink(endpoint), 'data-row': true }, `${endpoint.namespace}/${endpoint.name}${endpoint.portName ? `:${endpoint.portName}` : ''}`),
      ...rates(endpoint.rate),
      count(endpoint.counters.connections),
      count(endpoint.counters.active),
      bar(endpoint.share),
    ],
  })));
}

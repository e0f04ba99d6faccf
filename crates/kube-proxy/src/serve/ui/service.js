// One Service: the addresses of each port, and its endpoints. For each endpoint, the reason why it
// receives traffic or not.

import { h, notes, section, show, state, table, terms } from './dom.js';
import { ask } from './poll.js';
import { endpoints as endpointCounts } from './services.js';
import { api, bytes, count, counted, duration, link, portName, scaled } from './words.js';

/** Number of a port's endpoints that are shown at once. */
const FEW = 200;

export const title = ({ parts }) => `${parts[1]}/${parts[2]}`;

export function load({ parts }, signal) {
  return ask(api(['services', parts[1], parts[2]]), signal);
}

export function draw(main, _place, { answer: service, rates, all }) {
  const name = `${service.namespace}/${service.name}`;
  const siblings = link(['services'], { namespace: service.namespace });
  show(
    main,
    h('p', { class: 'trail', 'data-key': 'trail' }, h('a', { href: link(['services']) }, 'Services'), ' / ', h('a', { href: siblings }, service.namespace)),
    h('h1', { 'data-key': 'title' }, service.name),
    h('div', { 'data-key': 'terms' }, terms(
      ['Type', service.type],
      ['Internal policy', service.internalTrafficPolicy],
      ['External policy', service.externalTrafficPolicy],
      ['Affinity', service.sessionAffinitySeconds === undefined ? null : `client IP, ${duration(service.sessionAffinitySeconds)}`],
      ['Source ranges', service.sourceRanges?.join(', ')],
      ['Health check node port', service.healthCheckNodePort],
      ['Options', service.options?.map((option) => `${option.annotation}: ${option.value}`).join(', ')],
    )),
    h('p', { class: 'senders', 'data-key': 'senders' }, 'Trace a packet from ',
      ['pod', 'node', 'external'].map((from, at) => [at > 0 ? ' · ' : '', h('a', { href: link(['explain'], { to: name, from }) }, SENDERS[from])])),
    service.errors?.length
      ? h('ul', { class: 'errors', 'data-key': 'errors' }, service.errors.map((error) => h('li', null, state('warn', error))))
      : null,
    service.ports.map((port) => portSection(service, port, all, rates)),
    notes(service.notes),
  );
}

/** Senders by kind. */
export const SENDERS = { pod: 'a pod on this node', node: 'this node', external: 'outside' };

function portSection(service, port, full, rates) {
  const name = portName(port);
  return section(
    `Port ${name}`,
    h('p', { class: 'quiet' }, 'Endpoints: ', endpointCounts(port.endpointCounts),
      `; ${count(port.endpointCounts.ready)} ready, ${count(port.endpointCounts.local)} on this node`),
    addresses(port, name, rates),
    endpoints(service, port, full, rates),
  );
}

const KINDS = { clusterIP: 'cluster IP', externalIP: 'external IP', loadBalancerIP: 'load balancer IP', nodePort: 'node port' };

const TRAFFIC = [
  { title: 'New/s', number: true, optional: true }, { title: 'Packets/s', number: true, optional: true },
  { title: 'Bytes/s', number: true, optional: true }, { title: 'Connections', number: true, optional: true },
];

function traffic(key, counters, rates) {
  const rate = rates.of(key, counters);
  return [scaled(rate?.connections), scaled(rate?.packets), bytes(rate?.bytes), count(counters?.connections)];
}

function addresses(port, name, rates) {
  if (port.addresses.length === 0) return h('p', null, 'This node serves no address of it. Check spec.ipFamilies of the Service, and --nodeport-addresses for a NodePort.');
  const has_scheduler = port.addresses.some((address) => address.scheduler);
  const columns = [{ title: 'Address' }, { title: 'Kind' }, ...(has_scheduler ? [{ title: 'Scheduler' }] : []), ...TRAFFIC];
  return table(`Addresses of port ${name}`, columns, port.addresses.map((address) => ({
    key: address.at,
    tone: address.lostTo ? 'warn' : null,
    cells: [
      [h('code', null, address.at), address.lostTo ? [' ', state('warn', `${address.lostTo} has it`)] : null],
      KINDS[address.kind] ?? address.kind,
      ...(has_scheduler ? [address.scheduler ?? ''] : []),
      ...traffic(`${name} ${address.at}`, address.counters, rates),
    ],
  })));
}

const CONDITIONS = { ready: 'ready', servingTerminating: 'terminating, still serves', terminating: 'terminating', notReady: 'not ready', draining: 'draining', left: 'left' };

function endpoints(service, port, full, rates) {
  const name = portName(port);
  const all = port.endpoints ?? [];
  if (all.length === 0) {
    return h('p', null, 'No endpoints, so connections are refused. Check that the selector matches pods: ',
      h('code', null, `kubectl -n ${service.namespace} get endpointslices -l kubernetes.io/service-name=${service.name}`));
  }
  const has_weight = all.some((endpoint) => endpoint.weight !== undefined);
  const has_active = all.some((endpoint) => endpoint.counters?.active !== undefined);
  const columns = [
    { title: 'Endpoint' }, { title: 'In or out, and why', wide: true }, { title: 'State' }, { title: 'Pod', optional: true }, { title: 'Node', optional: true },
    ...(has_weight ? [{ title: 'Weight', number: true }] : []),
    ...(has_active ? [{ title: 'Active', number: true }, { title: 'Inactive', number: true }] : []),
    ...TRAFFIC,
  ];
  const shown = full.has(name) ? all : all.slice(0, FEW);
  const rows = shown.map((endpoint) => {
    const isIn = endpoint.cluster || endpoint.localPolicy;
    return {
      key: endpoint.at,
      tone: isIn ? null : 'out',
      cells: [
        h('code', { tabindex: '0', 'data-row': true }, endpoint.at),
        [state(isIn ? 'good' : 'off', isIn ? 'in' : 'out'), ` ${endpoint.why}`],
        conditionOf(endpoint),
        endpoint.pod ?? '',
        where(endpoint),
        ...(has_weight ? [endpoint.weight ?? ''] : []),
        ...(has_active ? [count(endpoint.counters?.active), count(endpoint.counters?.inactive)] : []),
        ...traffic(`${name} endpoint ${endpoint.at}`, endpoint.counters, rates),
      ],
    };
  });
  const more = shown.length < all.length
    ? h('p', null, h('button', { type: 'button', 'data-all': name }, `Show all ${counted(all.length, 'endpoint')}`))
    : null;
  return [table(`Endpoints of port ${name}`, columns, rows), more];
}

/** Returns an endpoint's state. For a draining endpoint, adds the drain's age and the open connections. */
function conditionOf({ condition, draining }) {
  const word = CONDITIONS[condition] ?? condition;
  if (!draining) return condition === 'left' ? state('warn', word) : word;
  const since = draining.seconds === undefined ? '' : ` for ${duration(draining.seconds)}`;
  const open = draining.open === undefined ? '' : `, ${count(draining.open)} open`;
  return state('busy', condition === 'draining' ? `draining${since}${open}` : `${word}, draining${since}${open}`);
}

function where({ local, node, zone }) {
  return [local ? 'this node' : node, zone].filter(Boolean).join(', ');
}

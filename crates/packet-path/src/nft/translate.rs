//! Expressions of nf_tables that translate a packet's source or destination address.

use std::net::IpAddr;

use nftables_netlink::{Expression, Family, NatKind, Register, Verdict};

use super::reader::Reader;
use super::run::{Effect, Evaluation, ExpressionResult, Run};
use crate::branch::End;
use crate::packet::SourceNat;

impl Run {
    pub(super) fn translate<R: Reader>(
        &mut self,
        evaluation: &Evaluation<'_, R>,
        expression: &Expression,
    ) -> ExpressionResult {
        let did = match expression {
            Expression::Masquerade { .. } => self.masquerade(evaluation),
            Expression::Redirect { port, .. } => self.redirect(evaluation, *port),
            Expression::Nat {
                kind,
                family,
                address,
                port,
                ..
            } => self.nat(*kind, *family, *address, *port),
            _ => None,
        };
        match did {
            Some(did) => {
                self.did.push(did);
                // A translation ends the chain, like the verdict accept.
                ExpressionResult::Ended((self.branch.end.is_none()).then_some(Verdict::Accept))
            }
            None => ExpressionResult::Lost,
        }
    }

    fn masquerade<R: Reader>(&mut self, evaluation: &Evaluation<'_, R>) -> Option<Effect> {
        let packet = &mut self.branch.packet;
        let address = match &packet.oif {
            Some(oif) => evaluation.kernel.address_of(oif, packet.destination).ok()?,
            None => None,
        };
        packet.translate_source(SourceNat::Masquerade(address));
        Some(Effect::Source(SourceNat::Masquerade(address)))
    }

    fn redirect<R: Reader>(
        &mut self,
        evaluation: &Evaluation<'_, R>,
        port: Option<Register>,
    ) -> Option<Effect> {
        let port = self.port(port)?;
        let packet = &mut self.branch.packet;
        let address = match &packet.iif {
            None => Some(packet.family().localhost()),
            Some(iif) => evaluation.kernel.address_of(iif, packet.source).ok()?,
        };
        if address.is_none() {
            // The interface has no address for the redirection, so the kernel drops the packet.
            self.branch.end = Some(End::Dropped);
        } else {
            packet.translate(address, port);
            packet.is_redirected = true;
        }
        Some(Effect::Redirected(address, self.branch.packet.port))
    }

    /// Returns the port in a register. Returns `Some(None)` if no register is given, and `None` if
    /// the register's content is unknown.
    #[allow(
        clippy::option_option,
        reason = "whether it is known, and whether there is one"
    )]
    fn port(&self, register: Option<Register>) -> Option<Option<u16>> {
        let Some(register) = register else {
            return Some(None);
        };
        let bytes = self.registers.bytes(register, 2)?;
        let bytes = <[u8; 2]>::try_from(&*bytes).ok()?;
        Some(Some(u16::from_be_bytes(bytes)))
    }

    fn nat(
        &mut self,
        kind: NatKind,
        family: Family,
        address: Option<Register>,
        port: Option<Register>,
    ) -> Option<Effect> {
        let port = self.port(port)?;
        let address = match address {
            Some(address) => Some(self.address(address, family)?),
            None => None,
        };
        let packet = &mut self.branch.packet;
        if kind == NatKind::Source {
            let to = SourceNat::To(address, port);
            packet.translate_source(to.clone());
            return Some(Effect::Source(to));
        }
        let before = packet.to();
        let has_changed = packet.destination_changed;
        packet.translate(address, port);
        if packet.to() == before {
            packet.destination_changed = has_changed;
            return Some(Effect::Kept);
        }
        Some(Effect::Destination(packet.destination, packet.port))
    }

    fn address(&self, from: Register, family: Family) -> Option<IpAddr> {
        let bytes = |len| self.registers.bytes(from, len);
        match family {
            Family::Ip6 => {
                let bytes = <[u8; 16]>::try_from(&*bytes(16)?).ok()?;
                Some(IpAddr::from(bytes))
            }
            Family::Ip => {
                let bytes = <[u8; 4]>::try_from(&*bytes(4)?).ok()?;
                Some(IpAddr::from(bytes))
            }
            _ => None,
        }
    }
}

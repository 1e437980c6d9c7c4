//! Effects of single instructions on registers and the stack.

use capriole_event::Gpr;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::super::instructions::{general, writes};
use super::arrival::argument;
use super::{At, Byte, Prologue, Source, VECTOR, add, at};

impl Prologue<'_> {
    pub(super) fn execute(&mut self, i: &Instruction) {
        use Mnemonic as M;
        let two = i.op_count() == 2 && !i.has_op_mask();
        match i.mnemonic() {
            M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Movd
            | M::Movq
            | M::Movss
            | M::Movsd
            | M::Movlps
            | M::Movlpd
            | M::Movaps
            | M::Movups
            | M::Movapd
            | M::Movupd
            | M::Movdqa
            | M::Movdqu
            | M::Vmovd
            | M::Vmovq
            | M::Vmovss
            | M::Vmovsd
            | M::Vmovlps
            | M::Vmovlpd
            | M::Vmovaps
            | M::Vmovups
            | M::Vmovapd
            | M::Vmovupd
            | M::Vmovdqa
            | M::Vmovdqu
            | M::Vmovdqa32
            | M::Vmovdqa64
            | M::Vmovdqu8
            | M::Vmovdqu16
            | M::Vmovdqu32
            | M::Vmovdqu64
                if two =>
            {
                self.copy(i, 0);
            }
            M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd
                if two && i.op0_kind() == OpKind::Memory =>
            {
                self.copy(i, 8);
            }
            // The upper half of a vector register.
            M::Pextrq | M::Vpextrq if i.op0_kind() == OpKind::Register && i.immediate8() == 1 => {
                let value = vector(i.op1_register()).map(|number| self.state.vectors[number]);
                if let (Some(value), Some((number, _))) = (value, general(i.op0_register())) {
                    self.state.general[number] = std::array::from_fn(|at| value[8 + at]);
                }
            }
            M::Push => self.push(i),
            M::Pop if general(i.op0_register()).is_some_and(|g| g.1 == 8) => {
                let top = self.register_source(Gpr::Rsp as usize);
                let value = top.as_ref().map_or([None; 8], |at| {
                    let mut bytes = [None; 8];
                    bytes.copy_from_slice(&self.load(at, 8));
                    bytes
                });
                let raised = top.and_then(|at| add(at, 8));
                self.set(Gpr::Rsp as usize, raised);
                if let Some((number, _)) = general(i.op0_register()) {
                    self.state.general[number] = value;
                }
            }
            M::Lea if general(i.op0_register()).is_some_and(|g| g.1 == 8) => {
                let address = self.address(i);
                if let Some((number, _)) = general(i.op0_register()) {
                    self.set(number, address);
                }
            }
            M::Add | M::Sub | M::And | M::Shr | M::Sar if i.op0_kind() == OpKind::Register => {
                self.calculate(i);
            }
            _ => self.forget(i),
        }
    }

    /// Executes arithmetic with a constant.
    fn calculate(&mut self, i: &Instruction) {
        use Mnemonic as M;
        let (Some((number, size)), Some(value)) = (general(i.op0_register()), immediate(i)) else {
            return self.forget(i);
        };
        let before = self.state.general[number];
        let source = self.register_source(number);
        self.forget(i);
        match (i.mnemonic(), size) {
            (M::Add, 8) => self.set(number, source.and_then(|s| add(s, value))),
            (M::Sub, 8) => self.set(number, source.and_then(|s| add(s, value.wrapping_neg()))),
            // The stack pointer is aligned; this is followed only once.
            (M::And, 8) if value < 0 && !self.rounded && source.as_ref().is_some_and(is_entry) => {
                self.rounded = true;
                self.set(number, Some(Source::Rounded(0)));
            }
            // clang masks a boolean before it stores it.
            (M::And, 1) if value == 1 => {
                if let Some((source, 0)) = before[0]
                    && let Source::Number(sum) = &self.sources[usize::from(source)]
                    && let Some(register) = argument(sum)
                {
                    let bit = self.intern(Source::Bit(register));
                    self.state.general[number][0] = Some((bit, 0));
                }
            }
            // The shift extracts the rest of a struct of odd size.
            (M::Shr | M::Sar, 4 | 8) if value > 0 && value % 8 == 0 => {
                let by = (value / 8) as usize;
                if let Some(rest) = before.get(by..size) {
                    self.state.general[number][..rest.len()].copy_from_slice(rest);
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, i: &Instruction) {
        let value = match (i.op0_kind(), general(i.op0_register())) {
            (OpKind::Register, Some((number, 8))) => self.state.general[number].to_vec(),
            (OpKind::Memory, _) => match self.address(i) {
                Some(address) => self.load(&address, 8),
                None => vec![None; 8],
            },
            _ => vec![None; 8],
        };
        let top = self.register_source(Gpr::Rsp as usize);
        let lowered = top.and_then(|at| add(at, -8));
        if let Some(at) = lowered.as_ref().and_then(at) {
            self.store(at, &value, true);
        }
        self.set(Gpr::Rsp as usize, lowered);
    }

    /// Executes a plain copy from one operand to the other; a vector register is copied from byte
    /// `skip` on.
    fn copy(&mut self, i: &Instruction, skip: usize) {
        let to_memory = i.op0_kind() == OpKind::Memory;
        let from_memory = i.op1_kind() == OpKind::Memory;
        let size = match (to_memory || from_memory, i.mnemonic()) {
            (true, _) => i.memory_size().size(),
            (false, Mnemonic::Movss | Mnemonic::Movd | Mnemonic::Vmovd) => 4,
            (false, Mnemonic::Movsd | Mnemonic::Movq | Mnemonic::Vmovq) => 8,
            (false, _) => match general(i.op1_register()) {
                Some((_, size)) => size,
                None => i.op1_register().size(),
            },
        };
        let value = match i.op1_kind() {
            OpKind::Memory => match self.address(i) {
                Some(address) => self.load(&address, size),
                None => vec![None; size],
            },
            OpKind::Register => match (general(i.op1_register()), vector(i.op1_register())) {
                (Some((number, _)), _) => self.state.general[number].to_vec(),
                (_, Some(number)) => self.state.vectors[number][skip..].to_vec(),
                _ => vec![None; size],
            },
            _ => vec![None; size],
        };
        let mut value = value;
        value.resize(size, None);
        if to_memory {
            match self.address(i).as_ref().and_then(at) {
                Some(at) => self.store(at, &value, false),
                None => self.forget(i),
            }
        } else if let Some((number, own)) = general(i.op0_register()) {
            let register = &mut self.state.general[number];
            // Writing 1 or 2 bytes of a register keeps its other bytes.
            if own >= 4 {
                *register = [None; 8];
            }
            for (byte, &new) in register
                .iter_mut()
                .take(own)
                .zip(value.iter().chain(std::iter::repeat(&None)))
            {
                *byte = new;
            }
        } else if let Some(number) = vector(i.op0_register()) {
            let register = &mut self.state.vectors[number];
            *register = [None; VECTOR];
            for (byte, new) in register.iter_mut().zip(value) {
                *byte = new;
            }
        } else {
            self.forget(i);
        }
    }

    /// Marks the registers and stack bytes that an instruction writes to as unknown.
    pub(super) fn forget(&mut self, i: &Instruction) {
        let mut memory = Vec::new();
        let info = self.info.info(i);
        for used in info.used_memory().iter().filter(|m| writes(m.access())) {
            if used.index() == Register::None {
                let size = used.memory_size().size().max(1);
                memory.push((used.base(), used.displacement() as i64, size));
            }
        }
        for used in info.used_registers().iter().filter(|r| writes(r.access())) {
            if let Some((number, _)) = general(used.register().full_register()) {
                self.state.general[number] = [None; 8];
            } else if let Some(number) = vector(used.register()) {
                self.state.vectors[number] = [None; VECTOR];
            }
        }
        for (base, displacement, size) in memory {
            let base = general(base).and_then(|(number, _)| self.register_source(number));
            let address = base.and_then(|base| add(base, displacement));
            if let Some(at) = address.as_ref().and_then(at) {
                self.store(at, &vec![None; size], false);
            }
        }
    }

    /// Returns the address of an instruction's memory operand.
    fn address(&self, i: &Instruction) -> Option<Source> {
        let plain = i.memory_index() == Register::None && i.segment_prefix() == Register::None;
        let (number, size) = general(i.memory_base())?;
        if !plain || size != 8 {
            return None;
        }
        add(
            self.register_source(number)?,
            i.memory_displacement64() as i64,
        )
    }

    /// Loads bytes of the stack.
    pub(super) fn load(&mut self, address: &Source, size: usize) -> Vec<Byte> {
        let Some(start) = at(address) else {
            return vec![None; size];
        };
        // The value that the caller put there, if nothing was written over it.
        let caller = match address {
            Source::Number(sum) if matches!(start, At::Entry(8..)) => sum.clone().read(),
            _ => None,
        };
        let caller = caller.map(|sum| self.intern(Source::Number(sum)));
        (0..size)
            .map(
                |index| match self.state.stack.get(&start.add(index as i64)) {
                    Some((byte, _)) => *byte,
                    None => caller.and_then(|source| Some((source, u8::try_from(index).ok()?))),
                },
            )
            .collect()
    }

    /// Stores bytes to the stack. After the first statement, skips bytes to which a parameter was
    /// already stored: later stores there are the program's own.
    fn store(&mut self, at: At, value: &[Byte], pushed: bool) {
        let late = self.decoder.ip() > self.body;
        for (index, byte) in value.iter().enumerate() {
            let at = at.add(index as i64);
            let taken = self.state.stack.get(&at).is_some_and(|known| !known.1);
            if !(late && taken) {
                self.state.stack.insert(at, (*byte, pushed));
            }
        }
    }
}

fn vector(register: Register) -> Option<usize> {
    let number = register.is_vector_register().then(|| register.number());
    number.filter(|&number| number < 16)
}

fn immediate(i: &Instruction) -> Option<i64> {
    i.try_immediate(1).ok().map(|value| value as i64)
}

fn is_entry(source: &Source) -> bool {
    matches!(at(source), Some(At::Entry(_)))
}

//! Demangling of names of D.
//!
//! The grammar is that of <https://dlang.org/spec/abi.html#name_mangling>. Names are written as GNU's tools
//! and gdb write them: without the return type and the attributes of the function, with qualifiers of
//! `this` behind the parameters. Letters of methods' comments are those of the grammar.

/// The symbol of the program's own `main`.
const MAIN: &str = "_Dmain";
/// Maximum depth of types and names in each other.
const DEEPEST: u32 = 128;
/// Maximum number of types, names and values of one name: back references may repeat what repeats others.
const STEPS: u32 = 20_000;

/// A demangled name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// With parameters: `app.Cart.cost(int) const`.
    pub full: String,
    /// Without: `app.Cart.cost`.
    pub short: String,
}

/// True if a name looks like one of D. Names of C may begin with `_D` as well.
pub(super) fn is_mangled(name: &str) -> bool {
    let scopes = name.strip_prefix("_D");
    name == MAIN || scopes.is_some_and(|scopes| is_name(scopes.as_bytes()))
}

/// Demangles a name whose result is not longer than `longest` bytes. `None` if it is not one of D.
pub(super) fn demangle(name: &str, longest: usize) -> Option<Name> {
    // Marks of copies that the compiler made, such as `.isra.0`.
    let (mangled, marks) = name.split_at(name.find('.').unwrap_or(name.len()));
    let marks = clones(marks);
    if mangled == MAIN {
        let full = format!("D main{marks}");
        let short = full.clone();
        return Some(Name { full, short });
    }
    if !is_mangled(mangled) {
        return None;
    }
    let mut parser = Parser {
        text: mangled,
        at: 0,
        longest,
        depth: 0,
        steps: 0,
        reference: mangled.len(),
    };
    let mut full = String::new();
    let bare = parser.symbol(&mut full)?;
    let short = format!("{}{marks}", full.get(..bare)?);
    let is_whole = parser.at == mangled.len() && full.len() <= longest;
    is_whole.then(|| Name {
        full: full + &marks,
        short,
    })
}

/// Writes marks of copies as demanglers do: `.part.0.cold` is ` [clone .part.0] [clone .cold]`.
fn clones(marks: &str) -> String {
    let mut written = String::new();
    let mut words = marks.split('.').skip(1).peekable();
    let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_digit());
    while let Some(word) = words.next() {
        written += " [clone .";
        written += word;
        while let Some(number) = words.next_if(is_number) {
            written += ".";
            written += number;
        }
        written += "]";
    }
    written
}

/// True if a name begins here: by its length, or a template instance without a length. A back
/// reference may begin one, too.
fn is_name(text: &[u8]) -> bool {
    matches!(text, [b'0'..=b'9', ..] | [b'_', b'_', b'T' | b'U', ..])
}

/// A place in a mangled name.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Maximum length of the result, bytes.
    longest: usize,
    depth: u32,
    steps: u32,
    /// Where the back reference is that is being followed. What it leads to may only have earlier ones.
    reference: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn eat(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    fn take(&mut self, length: usize) -> Option<&'a str> {
        let taken = self.rest().get(..length)?;
        self.at += length;
        Some(taken)
    }

    fn take_while(&mut self, is_wanted: impl Fn(&u8) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.bytes().take_while(is_wanted).count();
        // Only ASCII is wanted.
        self.take(length).unwrap_or_default()
    }

    /// Parses a part that may contain others, within the limits.
    fn nested<T>(
        &mut self,
        out: &mut String,
        parse: impl FnOnce(&mut Self, &mut String) -> Option<T>,
    ) -> Option<T> {
        self.steps += 1;
        if self.depth >= DEEPEST || self.steps > STEPS || out.len() > self.longest {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self, out);
        self.depth -= 1;
        parsed
    }

    /// Number, which is never last.
    fn number(&mut self) -> Option<usize> {
        let digits = self.take_while(u8::is_ascii_digit);
        let number: u32 = digits.parse().ok()?;
        self.peek()?;
        usize::try_from(number).ok()
    }

    /// Q NumberBackRef, to an earlier place: base 26, with a lower-case last digit. Returns the place.
    fn back_reference(&mut self) -> Option<usize> {
        let place = self.at;
        if !self.eat("Q") {
            return None;
        }
        let mut distance = 0_usize;
        loop {
            let digit = self.peek()?;
            let is_last = digit.is_ascii_lowercase();
            let base = if is_last { b'a' } else { b'A' };
            let value = digit.checked_sub(base).filter(|value| *value < 26)?;
            distance = distance.checked_mul(26)?.checked_add(value.into())?;
            self.at += 1;
            if is_last {
                return place.checked_sub(distance).filter(|to| *to < place);
            }
        }
    }

    /// True if a name begins here.
    fn is_at_name(&mut self) -> bool {
        let start = self.at;
        if self.peek() != Some(b'Q') {
            return is_name(&self.text.as_bytes()[start.min(self.text.len())..]);
        }
        let to = self.back_reference();
        self.at = start;
        let begin = to.and_then(|to| self.text.as_bytes().get(to));
        begin.is_some_and(u8::is_ascii_digit)
    }

    fn is_at_convention(&self) -> bool {
        matches!(self.peek(), Some(b'F' | b'U' | b'V' | b'W' | b'R' | b'Y'))
    }

    /// MangledName: _D QualifiedName Type, or Z in place of the type. Returns the length of the name
    /// without parameters.
    fn symbol(&mut self, out: &mut String) -> Option<usize> {
        if !self.eat("_D") {
            return None;
        }
        let bare = self.qualified(out, true)?;
        if !self.eat("Z") {
            self.value_type(&mut String::new())?;
        }
        Some(bare)
    }

    /// QualifiedName: names, each maybe with the parameters of a function, as things inside of functions
    /// have them. Returns the length without the parameters of the last name.
    fn qualified(&mut self, out: &mut String, has_qualifiers: bool) -> Option<usize> {
        self.nested(out, |this, out| {
            let mut bare = out.len();
            let mut is_first = true;
            loop {
                // Scopes without a name.
                if this.peek() == Some(b'0') {
                    this.take_while(|byte| *byte == b'0');
                } else {
                    if !std::mem::take(&mut is_first) {
                        out.push('.');
                    }
                    this.identifier(out)?;
                    bare = out.len();
                    let start = this.at;
                    let is_function = this.own_parameters(out, has_qualifiers).is_some();
                    // What is last is the symbol's type.
                    if !is_function || this.peek().is_none() {
                        this.at = start;
                        out.truncate(bare);
                    }
                }
                if !this.is_at_name() {
                    return Some(bare);
                }
            }
        })
    }

    /// TypeFunctionNoReturn, behind M and the qualifiers of `this` for members.
    fn own_parameters(&mut self, out: &mut String, has_qualifiers: bool) -> Option<()> {
        let mut qualifiers = String::new();
        if self.eat("M") {
            self.qualifiers(&mut qualifiers)?;
        } else if !self.is_at_convention() {
            return None;
        }
        self.function(&mut String::new(), out, &mut String::new())?;
        if has_qualifiers {
            out.push_str(&qualifiers);
        }
        Some(())
    }

    /// SymbolName: a name behind its length, a template instance, or a reference to an earlier name.
    fn identifier(&mut self, out: &mut String) -> Option<()> {
        self.nested(out, |this, out| {
            if this.peek() == Some(b'Q') {
                let to = this.back_reference()?;
                let behind = std::mem::replace(&mut this.at, to);
                let length = this.number()?;
                this.name(out, length)?;
                this.at = behind;
                return Some(());
            }
            if is_name(this.rest().as_bytes()) && this.peek() == Some(b'_') {
                return this.template(out, None);
            }
            let length = this.number().filter(|length| *length > 0)?;
            let name = this.rest().get(..length)?;
            match name.strip_prefix("__") {
                Some(rest) if length >= 5 && rest.starts_with(['T', 'U']) => {
                    this.template(out, Some(length))
                }
                // A scope that makes names unique in a function.
                Some(rest) if length >= 4 && is_unique(rest) => {
                    this.at += length;
                    this.identifier(out)
                }
                _ => this.name(out, length),
            }
        })
    }

    /// LName. The compiler has names of its own for some functions and tables.
    fn name(&mut self, out: &mut String, length: usize) -> Option<()> {
        let special = [
            ("__initZ", "initializer for "),
            ("__vtblZ", "vtable for "),
            ("__ClassZ", "ClassInfo for "),
            ("__InterfaceZ", "Interface for "),
            ("__ModuleInfoZ", "ModuleInfo for "),
        ];
        let rest = self.rest();
        let is_special = |name: &str| length + 1 == name.len() && rest.starts_with(name);
        if let Some((_, title)) = special.into_iter().find(|(name, _)| is_special(name)) {
            out.insert_str(0, title);
            out.pop(); // the point
        } else if length == "__postblit".len() && rest.starts_with("__postblitMFZ") {
            out.push_str("this(this)");
            self.at += "MFZ".len();
        } else {
            out.push_str(match rest.get(..length)? {
                "__ctor" => "this",
                "__dtor" => "~this",
                name => name,
            });
        }
        self.at += length;
        Some(())
    }

    /// TemplateInstanceName: __T or __U, LName, TemplateArgs, Z.
    fn template(&mut self, out: &mut String, length: Option<usize>) -> Option<()> {
        let start = self.at;
        self.at += "__T".len();
        if !self.is_at_name() || self.peek() == Some(b'0') {
            return None;
        }
        self.identifier(out)?;
        out.push_str("!(");
        self.list(out, |this, out| this.template_argument(out))?;
        out.push(')');
        let is_whole = length.is_none_or(|length| self.at - start == length);
        is_whole.then_some(())
    }

    /// Parses arguments up to a Z, or the end.
    fn list(
        &mut self,
        out: &mut String,
        parse: impl Fn(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        let mut is_first = true;
        while self.peek().is_some() && !self.eat("Z") {
            if !std::mem::take(&mut is_first) {
                out.push_str(", ");
            }
            self.nested(out, &parse)?;
        }
        Some(())
    }

    /// TemplateArg: a symbol, a type, a value, or a name of another language.
    fn template_argument(&mut self, out: &mut String) -> Option<()> {
        self.eat("H"); // of a specialised template
        let kind = self.take(1)?;
        match kind {
            "S" => self.symbol_argument(out),
            "T" => self.value_type(out),
            "V" => {
                let mut kind = self.peek()?;
                if kind == b'Q' {
                    let start = self.at;
                    let to = self.back_reference()?;
                    self.at = start;
                    kind = *self.text.as_bytes().get(to)?;
                }
                let mut name = String::new();
                self.value_type(&mut name)?;
                self.value(out, Some(&name), kind)
            }
            "X" => {
                let length = self.number()?;
                out.push_str(self.take(length)?);
                Some(())
            }
            _ => None,
        }
    }

    /// The symbol that is an argument of a template.
    fn symbol_argument(&mut self, out: &mut String) -> Option<()> {
        if self.is_at_symbol() {
            return self.symbol(out).map(drop);
        }
        if self.peek() == Some(b'Q') {
            return self.qualified(out, false).map(drop);
        }
        let start = self.at;
        let length = self.number().filter(|length| *length > 0)?;
        // Up to version 2.076 its length comes first, and the digits of its first name's length behind:
        // any of the digits may be the last of the first number.
        let (behind, written) = (self.at, out.len());
        let mut size = length;
        let mut begin = behind;
        while size > 0 {
            self.at = begin;
            let parsed = self.symbol_or_name(out).is_some();
            if parsed && self.at - begin == size {
                return Some(());
            }
            out.truncate(written);
            size /= 10;
            begin -= 1;
        }
        // The whole number is the length of its first name.
        self.at = start;
        self.symbol_or_name(out)
    }

    fn symbol_or_name(&mut self, out: &mut String) -> Option<()> {
        if self.is_at_name() {
            self.qualified(out, false).map(drop)
        } else if self.is_at_symbol() {
            self.symbol(out).map(drop)
        } else {
            None
        }
    }

    fn is_at_symbol(&mut self) -> bool {
        let start = self.at;
        let is_symbol = self.eat("_D") && self.is_at_name();
        self.at = start;
        is_symbol
    }

    /// Type.
    fn value_type(&mut self, out: &mut String) -> Option<()> {
        self.nested(out, |this, out| match this.peek()? {
            b'Q' => this.referenced(out, |this, out| this.value_type(out)),
            b'O' => this.enclosed(out, "O", "shared("),
            b'x' => this.enclosed(out, "x", "const("),
            b'y' => this.enclosed(out, "y", "immutable("),
            b'N' if this.rest().starts_with("Ng") => this.enclosed(out, "Ng", "inout("),
            b'N' if this.rest().starts_with("Nh") => this.enclosed(out, "Nh", "__vector("),
            b'A' => {
                this.at += 1;
                this.value_type(out)?;
                out.push_str("[]");
                Some(())
            }
            b'G' => {
                this.at += 1;
                let count = this.take_while(u8::is_ascii_digit);
                this.value_type(out)?;
                out.push_str(&format!("[{count}]"));
                Some(())
            }
            b'H' => {
                this.at += 1;
                let mut key = String::new();
                this.value_type(&mut key)?;
                this.value_type(out)?;
                out.push_str(&format!("[{key}]"));
                Some(())
            }
            b'P' => {
                this.at += 1;
                if this.is_at_convention() {
                    return this.value_type(out);
                }
                this.value_type(out)?;
                out.push('*');
                Some(())
            }
            b'C' | b'S' | b'E' | b'T' => {
                this.at += 1;
                this.qualified(out, false).map(drop)
            }
            b'D' => this.delegate(out),
            b'B' => {
                this.at += 1;
                let count = this.number()?;
                out.push_str("Tuple!(");
                this.counted(out, count, |this, out| this.value_type(out))?;
                out.push(')');
                Some(())
            }
            _ if this.is_at_convention() => {
                this.function_type(out)?;
                out.push_str("function");
                Some(())
            }
            _ => this.basic_type(out),
        })
    }

    /// A type inside of another one, such as `const(T)`.
    fn enclosed(&mut self, out: &mut String, code: &str, title: &str) -> Option<()> {
        self.at += code.len();
        out.push_str(title);
        self.value_type(out)?;
        out.push(')');
        Some(())
    }

    /// Parses what a back reference leads to.
    fn referenced(
        &mut self,
        out: &mut String,
        parse: impl FnOnce(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        if self.at >= self.reference {
            return None;
        }
        let place = self.at;
        let to = self.back_reference()?;
        let outer = std::mem::replace(&mut self.reference, place);
        let behind = std::mem::replace(&mut self.at, to);
        let parsed = parse(self, out);
        self.at = behind;
        self.reference = outer;
        parsed
    }

    fn basic_type(&mut self, out: &mut String) -> Option<()> {
        let (code, name) = match self.rest().as_bytes() {
            [b'N', b'n', ..] => (2, "typeof(*null)"),
            [b'z', b'i', ..] => (2, "cent"),
            [b'z', b'k', ..] => (2, "ucent"),
            [b'n', ..] => (1, "typeof(null)"),
            [b'v', ..] => (1, "void"),
            [b'g', ..] => (1, "byte"),
            [b'h', ..] => (1, "ubyte"),
            [b's', ..] => (1, "short"),
            [b't', ..] => (1, "ushort"),
            [b'i', ..] => (1, "int"),
            [b'k', ..] => (1, "uint"),
            [b'l', ..] => (1, "long"),
            [b'm', ..] => (1, "ulong"),
            [b'f', ..] => (1, "float"),
            [b'd', ..] => (1, "double"),
            [b'e', ..] => (1, "real"),
            [b'o', ..] => (1, "ifloat"),
            [b'p', ..] => (1, "idouble"),
            [b'j', ..] => (1, "ireal"),
            [b'q', ..] => (1, "cfloat"),
            [b'r', ..] => (1, "cdouble"),
            [b'c', ..] => (1, "creal"),
            [b'b', ..] => (1, "bool"),
            [b'a', ..] => (1, "char"),
            [b'u', ..] => (1, "wchar"),
            [b'w', ..] => (1, "dchar"),
            _ => return None,
        };
        self.at += code;
        out.push_str(name);
        Some(())
    }

    /// TypeDelegate: D, qualifiers, a function type.
    fn delegate(&mut self, out: &mut String) -> Option<()> {
        self.at += 1;
        let mut qualifiers = String::new();
        self.qualifiers(&mut qualifiers)?;
        match self.peek() {
            Some(b'Q') => self.referenced(out, |this, out| this.function_type(out))?,
            _ => self.function_type(out)?,
        }
        out.push_str("delegate");
        out.push_str(&qualifiers);
        Some(())
    }

    /// TypeModifiers, which come behind what they belong to.
    fn qualifiers(&mut self, out: &mut String) -> Option<()> {
        loop {
            if self.eat("x") {
                out.push_str(" const");
                return Some(());
            } else if self.eat("y") {
                out.push_str(" immutable");
                return Some(());
            } else if self.eat("O") {
                out.push_str(" shared");
            } else if self.eat("Ng") {
                out.push_str(" inout");
            } else {
                return (self.peek() != Some(b'N')).then_some(());
            }
        }
    }

    /// TypeFunction: `extern(C) int(char) pure `, with a blank at the end.
    fn function_type(&mut self, out: &mut String) -> Option<()> {
        self.nested(out, |this, out| {
            let (mut parameters, mut attributes) = (String::new(), String::new());
            this.function(out, &mut parameters, &mut attributes)?;
            this.value_type(out)?;
            out.push_str(&parameters);
            out.push(' ');
            out.push_str(&attributes);
            Some(())
        })
    }

    /// TypeFunctionNoReturn, by its parts.
    fn function(
        &mut self,
        convention: &mut String,
        parameters: &mut String,
        attributes: &mut String,
    ) -> Option<()> {
        convention.push_str(match self.peek()? {
            b'F' => "",
            b'U' => "extern(C) ",
            b'W' => "extern(Windows) ",
            b'V' => "extern(Pascal) ",
            b'R' => "extern(C++) ",
            b'Y' => "extern(Objective-C) ",
            _ => return None,
        });
        self.at += 1;
        while let [b'N', code, ..] = self.rest().as_bytes() {
            attributes.push_str(match code {
                b'a' => "pure ",
                b'b' => "nothrow ",
                b'c' => "ref ",
                b'd' => "@property ",
                b'e' => "@trusted ",
                b'f' => "@safe ",
                b'i' => "@nogc ",
                b'j' => "return ",
                b'l' => "scope ",
                b'm' => "@live ",
                // These belong to the first parameter.
                b'g' | b'h' | b'k' | b'n' => break,
                _ => return None,
            });
            self.at += 2;
        }
        parameters.push('(');
        self.parameters(parameters)?;
        parameters.push(')');
        Some(())
    }

    /// Parameters, up to Z, or to X or Y of variadic functions.
    fn parameters(&mut self, out: &mut String) -> Option<()> {
        let mut is_first = true;
        while self.peek().is_some() && !self.eat("Z") {
            if self.eat("X") {
                out.push_str("...");
                return Some(());
            }
            if !std::mem::take(&mut is_first) {
                out.push_str(", ");
            }
            if self.eat("Y") {
                out.push_str("...");
                return Some(());
            }
            for (code, word) in [("M", "scope "), ("Nk", "return ")] {
                if self.eat(code) {
                    out.push_str(word);
                }
            }
            if self.eat("I") {
                out.push_str("in ");
                if self.eat("K") {
                    out.push_str("ref ");
                }
            } else {
                let storage = [("J", "out "), ("K", "ref "), ("L", "lazy ")];
                if let Some((_, word)) = storage.into_iter().find(|(code, _)| self.eat(code)) {
                    out.push_str(word);
                }
            }
            self.value_type(out)?;
        }
        Some(())
    }

    /// Parses so many parts, and separates them.
    fn counted(
        &mut self,
        out: &mut String,
        count: usize,
        parse: impl Fn(&mut Self, &mut String) -> Option<()>,
    ) -> Option<()> {
        for number in 0..count {
            if number > 0 {
                out.push_str(", ");
            }
            parse(self, out)?;
        }
        Some(())
    }

    /// Value, of the type with this first letter; `name` is the type's.
    fn value(&mut self, out: &mut String, name: Option<&str>, kind: u8) -> Option<()> {
        self.nested(out, |this, out| match this.peek()? {
            b'0'..=b'9' => this.integer(out, kind),
            b'i' => {
                this.at += 1;
                this.integer(out, kind)
            }
            b'N' => {
                this.at += 1;
                out.push('-');
                this.integer(out, kind)
            }
            b'n' => {
                this.at += 1;
                out.push_str("null");
                Some(())
            }
            b'e' => {
                this.at += 1;
                this.real(out)
            }
            b'c' => {
                this.at += 1;
                this.real(out)?;
                out.push('+');
                if !this.eat("c") {
                    return None;
                }
                this.real(out)?;
                out.push('i');
                Some(())
            }
            b'a' | b'w' | b'd' => this.string(out),
            b'A' => {
                this.at += 1;
                let count = this.number()?;
                out.push('[');
                this.counted(out, count, |this, out| {
                    this.value(out, None, 0)?;
                    if kind == b'H' {
                        out.push(':');
                        this.value(out, None, 0)?;
                    }
                    Some(())
                })?;
                out.push(']');
                Some(())
            }
            b'S' => {
                this.at += 1;
                let count = this.number()?;
                out.push_str(name.unwrap_or_default());
                out.push('(');
                this.counted(out, count, |this, out| this.value(out, None, 0))?;
                out.push(')');
                Some(())
            }
            b'f' => {
                this.at += 1;
                match this.is_at_symbol() {
                    true => this.symbol(out).map(drop),
                    false => None,
                }
            }
            _ => None,
        })
    }

    fn integer(&mut self, out: &mut String, kind: u8) -> Option<()> {
        match kind {
            b'a' | b'u' | b'w' => {
                let code = self.number()?;
                out.push_str(&match (kind, u8::try_from(code)) {
                    (b'a', Ok(code @ 0x20..0x7f)) => format!("'{}'", char::from(code)),
                    (b'a', _) => format!("'\\x{code:02x}'"),
                    (b'u', _) => format!("'\\u{code:04x}'"),
                    _ => format!("'\\U{code:08x}'"),
                });
            }
            b'b' => out.push_str(match self.number()? {
                0 => "false",
                _ => "true",
            }),
            _ => {
                let digits = self.take_while(u8::is_ascii_digit);
                if digits.is_empty() {
                    return None;
                }
                out.push_str(digits);
                out.push_str(match kind {
                    b'h' | b't' | b'k' => "u",
                    b'l' => "L",
                    b'm' => "uL",
                    _ => "",
                });
            }
        }
        Some(())
    }

    fn real(&mut self, out: &mut String) -> Option<()> {
        let names = [("NAN", "NaN"), ("INF", "Inf"), ("NINF", "-Inf")];
        if let Some((_, name)) = names.into_iter().find(|(code, _)| self.eat(code)) {
            out.push_str(name);
            return Some(());
        }
        if self.eat("N") {
            out.push('-');
        }
        let first = self.take(1)?;
        if !first.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let fraction = self.take_while(u8::is_ascii_hexdigit);
        if !self.eat("P") {
            return None;
        }
        let sign = if self.eat("N") { "-" } else { "" };
        let exponent = self.take_while(u8::is_ascii_digit);
        out.push_str(&format!("0x{first}.{fraction}p{sign}{exponent}"));
        Some(())
    }

    fn string(&mut self, out: &mut String) -> Option<()> {
        let kind = self.take(1)?;
        let length = self.number()?;
        if !self.eat("_") {
            return None;
        }
        out.push('"');
        for _ in 0..length {
            let digits = self.take(2)?;
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
            match byte {
                b'\t' => out.push_str("\\t"),
                b'\n' => out.push_str("\\n"),
                b'\r' => out.push_str("\\r"),
                0x0c => out.push_str("\\f"),
                0x0b => out.push_str("\\v"),
                b' '..=b'~' => out.push(byte.into()),
                _ => out.push_str(&format!("\\x{digits}")),
            }
        }
        out.push('"');
        if kind != "a" {
            out.push_str(kind);
        }
        Some(())
    }
}

/// True for the rest of `__S1`, a scope that makes the names of a function's declarations unique.
fn is_unique(rest: &str) -> bool {
    let number = rest.strip_prefix('S');
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

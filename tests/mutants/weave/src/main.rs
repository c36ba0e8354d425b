//! Weaves mutants into the files of a tree, so that one build has all of them: each does nothing unless MUTANT in the environment is
//! its number. With MUTANTS_SEEN, the name of a file, the numbers of the mutants whose places are reached are appended to it.
//!
//! usage: weave TREE < LIST
//!
//! LIST is an array of `{id, file, genre, line, column, replacement}`, as run.py makes it of what `cargo mutants --list` tells. What is
//! changed in the tree are the files named there and the `lib.rs` of their crates. Prints a line `id reason` for each mutant that can't
//! be woven: which operand an operator has is told by the parser, but what stands in a constant or beside a `let` of a condition is
//! no place for an `if`.
//!
//! Operators are replaced in the tree of the expression, not in its text: of `a + b * c` the mutant `*` is `a * (b * c)`.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr};

type Error = Box<dyn std::error::Error>;

/// A mutant that a place may have: its number and what it puts there.
struct Mutant {
    id: u64,
    genre: String,
    replacement: String,
}

/// What a place of the source becomes: text and other places of the source.
enum Piece {
    Text(String),
    Source(Range<usize>),
}

struct Edit {
    place: Range<usize>,
    pieces: Vec<Piece>,
}

/// Collects the edits of one file, the outer ones before those inside of them.
struct Weaver {
    mutants: HashMap<(usize, usize), Vec<Mutant>>,
    edits: Vec<Edit>,
    /// Whether constants are evaluated here, at compile time.
    in_const: bool,
    left_out: Vec<(u64, &'static str)>,
}

fn on(id: u64) -> String {
    format!("crate::woven::on({id})")
}

impl Weaver {
    /// The mutants of a genre at a place, which are taken.
    fn take(&mut self, at: LineColumn, genre: &str) -> Vec<Mutant> {
        let Some(all) = self.mutants.get_mut(&(at.line, at.column + 1)) else { return Vec::new() };
        let (taken, left) = all.drain(..).partition(|mutant| mutant.genre == genre);
        *all = left;
        taken
    }

    /// The same where an `if` can stand; else they are told as left out.
    fn take_unless(&mut self, at: LineColumn, genre: &str, beside_let: bool) -> Vec<Mutant> {
        let taken = self.take(at, genre);
        let reason = match (self.in_const, beside_let) {
            (true, _) => "constant",
            (_, true) => "beside let",
            _ => return taken,
        };
        self.left_out.extend(taken.iter().map(|mutant| (mutant.id, reason)));
        Vec::new()
    }

    /// One of several, by the mutant that is on: `(if on(1) { (..) } else { (..) })`.
    fn choose(
        &mut self,
        place: Range<usize>,
        choices: Vec<(u64, Vec<Piece>)>,
        original: Vec<Piece>,
    ) {
        let mut pieces = vec![Piece::Text("(".to_owned())];
        for (id, choice) in choices {
            pieces.push(Piece::Text(format!("if {} {{ (", on(id))));
            pieces.extend(choice);
            pieces.push(Piece::Text(") } else ".to_owned()));
        }
        pieces.push(Piece::Text("{ (".to_owned()));
        pieces.extend(original);
        pieces.push(Piece::Text(") })".to_owned()));
        self.edits.push(Edit { place, pieces });
    }

    fn function(&mut self, block: &syn::Block, is_const: bool) {
        let Some(first) = block.stmts.first() else { return };
        self.in_const |= is_const;
        let mutants = self.take_unless(first.span().start(), "FnValue", false);
        let after = block.brace_token.span.open().byte_range().end;
        for mutant in mutants {
            let text = format!(" if {} {{ return {}; }}\n", on(mutant.id), mutant.replacement);
            self.edits.push(Edit { place: after..after, pieces: vec![Piece::Text(text)] });
        }
    }

    fn scope(&mut self, is_const: bool, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.in_const, is_const);
        visit(self);
        self.in_const = outer;
    }
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Weaver {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.scope(false, |weaver| {
            weaver.function(&item.block, item.sig.constness.is_some());
            visit::visit_item_fn(weaver, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.scope(false, |weaver| {
            weaver.function(&item.block, item.sig.constness.is_some());
            visit::visit_impl_item_fn(weaver, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.scope(false, |weaver| {
            if let Some(block) = &item.default {
                weaver.function(block, item.sig.constness.is_some());
            }
            visit::visit_trait_item_fn(weaver, item);
        });
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.scope(true, |weaver| visit::visit_item_const(weaver, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.scope(true, |weaver| visit::visit_impl_item_const(weaver, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.scope(true, |weaver| visit::visit_item_static(weaver, item));
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        let (left, right) = (expr.left.span().byte_range(), expr.right.span().byte_range());
        let beside_let = has_let(&expr.left) || has_let(&expr.right);
        let mutants = self.take_unless(expr.op.span().start(), "BinaryOperator", beside_let);
        let with = |text: &str| {
            vec![
                Piece::Source(left.clone()),
                Piece::Text(format!(" {text} ")),
                Piece::Source(right.clone()),
            ]
        };
        let place = left.start..right.end;
        // An operand that is told twice makes the text of nested ones grow: these need it once.
        let once = match (&expr.op, mutants.as_slice()) {
            (_, []) => None,
            (BinOp::And(_), [one]) if one.replacement == "||" => Some((one.id, "!=")),
            (BinOp::Or(_), [one]) if one.replacement == "&&" => Some((one.id, "==")),
            _ => {
                let op = op_text(&expr.op);
                let choices = mutants.iter().map(|m| (m.id, with(&m.replacement))).collect();
                self.choose(place.clone(), choices, with(op));
                None
            }
        };
        if let Some((id, test)) = once {
            let pieces = vec![
                Piece::Text("({ let woven: bool = ".to_owned()),
                Piece::Source(left),
                Piece::Text(format!("; if woven {test} {} {{ ", on(id))),
                Piece::Source(right),
                Piece::Text(" } else { woven } })".to_owned()),
            ];
            self.edits.push(Edit { place, pieces });
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        let mutants = self.take_unless(expr.op.span().start(), "UnaryOperator", false);
        let (whole, operand) = (expr.span().byte_range(), expr.expr.span().byte_range());
        let sign = Piece::Text(if matches!(expr.op, syn::UnOp::Not(_)) { "!" } else { "-" }.into());
        if let [mutant] = mutants.as_slice() {
            let without = vec![(mutant.id, vec![Piece::Source(operand.clone())])];
            self.choose(whole, without, vec![sign, Piece::Source(operand)]);
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        let whole = expr.span().byte_range();
        let mut choices = Vec::new();
        for pair in expr.fields.pairs() {
            let (start, end) = (pair.value().span().start(), pair.span().byte_range().end);
            let without = |place: Range<usize>| {
                vec![Piece::Source(whole.start..place.start), Piece::Source(place.end..whole.end)]
            };
            for mutant in self.take_unless(start, "StructField", false) {
                choices.push((mutant.id, without(pair.value().span().byte_range().start..end)));
            }
        }
        if !choices.is_empty() {
            self.choose(whole.clone(), choices, vec![Piece::Source(whole)]);
        }
        visit::visit_expr_struct(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let beside_let = arm.guard.as_ref().is_some_and(|(_, guard)| has_let(guard));
        let deleted = self.take_unless(arm.span().start(), "MatchArm", beside_let);
        let kept: Vec<String> =
            deleted.iter().map(|mutant| format!("!{}", on(mutant.id))).collect();
        if let Some((_, guard)) = &arm.guard {
            let guards = self.take_unless(guard.span().start(), "MatchArmGuard", beside_let);
            let mut condition = kept;
            let mut known = Vec::new();
            for mutant in guards {
                match mutant.replacement.as_str() {
                    "true" => known.push(on(mutant.id)),
                    _ => condition.push(format!("!{}", on(mutant.id))),
                }
            }
            if !(condition.is_empty() && known.is_empty()) {
                known.push(String::new());
                condition.push(format!("({}(", known.join(" || ")));
                let place = guard.span().byte_range();
                let pieces = vec![
                    Piece::Text(condition.join(" && ")),
                    Piece::Source(place.clone()),
                    Piece::Text("))".to_owned()),
                ];
                self.edits.push(Edit { place, pieces });
            }
        } else if !kept.is_empty() {
            let end = arm.pat.span().byte_range().end;
            let text = format!(" if {}", kept.join(" && "));
            self.edits.push(Edit { place: end..end, pieces: vec![Piece::Text(text)] });
        }
        visit::visit_arm(self, arm);
    }
}

fn op_text(op: &BinOp) -> &'static str {
    match op {
        BinOp::Add(_) => "+",
        BinOp::Sub(_) => "-",
        BinOp::Mul(_) => "*",
        BinOp::Div(_) => "/",
        BinOp::Rem(_) => "%",
        BinOp::And(_) => "&&",
        BinOp::Or(_) => "||",
        BinOp::BitXor(_) => "^",
        BinOp::BitAnd(_) => "&",
        BinOp::BitOr(_) => "|",
        BinOp::Shl(_) => "<<",
        BinOp::Shr(_) => ">>",
        BinOp::Eq(_) => "==",
        BinOp::Lt(_) => "<",
        BinOp::Le(_) => "<=",
        BinOp::Ne(_) => "!=",
        BinOp::Ge(_) => ">=",
        BinOp::Gt(_) => ">",
        BinOp::AddAssign(_) => "+=",
        BinOp::SubAssign(_) => "-=",
        BinOp::MulAssign(_) => "*=",
        BinOp::DivAssign(_) => "/=",
        BinOp::RemAssign(_) => "%=",
        BinOp::BitXorAssign(_) => "^=",
        BinOp::BitAndAssign(_) => "&=",
        BinOp::BitOrAssign(_) => "|=",
        BinOp::ShlAssign(_) => "<<=",
        BinOp::ShrAssign(_) => ">>=",
        _ => "?",
    }
}

/// A place of the source with the edits from `next` on that lie in it.
fn render(source: &str, edits: &[Edit], place: Range<usize>, mut next: usize, into: &mut String) {
    let mut at = place.start;
    while let Some(edit) = edits.get(next) {
        let is_inside = edit.place.start >= at && edit.place.end <= place.end;
        if is_inside {
            into.push_str(&source[at..edit.place.start]);
            for piece in &edit.pieces {
                match piece {
                    Piece::Text(text) => into.push_str(text),
                    Piece::Source(part) => {
                        render(source, edits, part.clone(), next + 1, into);
                    }
                }
            }
            at = edit.place.end;
        }
        next += 1;
    }
    into.push_str(&source[at..place.end]);
}

fn weave_file(path: &Path, mutants: HashMap<(usize, usize), Vec<Mutant>>) -> Result<(), Error> {
    let source = std::fs::read_to_string(path)?;
    let file = syn::parse_file(&source)?;
    let mut weaver = Weaver { mutants, edits: Vec::new(), in_const: false, left_out: Vec::new() };
    weaver.visit_file(&file);
    let missed = weaver.mutants.values().flatten().map(|mutant| (mutant.id, "no such place"));
    for (id, reason) in weaver.left_out.iter().copied().chain(missed) {
        println!("{id} {reason}");
    }
    // Stable: of two at one place the outer one comes first.
    weaver.edits.sort_by_key(|edit| (edit.place.start, std::cmp::Reverse(edit.place.end)));
    let mut woven = String::new();
    render(&source, &weaver.edits, 0..source.len(), 0, &mut woven);
    Ok(std::fs::write(path, woven)?)
}

fn main() -> Result<(), Error> {
    let tree = std::env::args().nth(1).ok_or("usage: weave TREE < LIST")?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let list: Vec<serde_json::Value> = serde_json::from_str(&text)?;
    let mut files: BTreeMap<&str, HashMap<(usize, usize), Vec<Mutant>>> = BTreeMap::new();
    let mut count = 0;
    for mutant in &list {
        let text = |name: &str| mutant[name].as_str().ok_or(format!("no {name} in {mutant}"));
        let number = |name: &str| mutant[name].as_u64().ok_or(format!("no {name} in {mutant}"));
        let at = (number("line")? as usize, number("column")? as usize);
        let (genre, replacement) = (text("genre")?.to_owned(), text("replacement")?.to_owned());
        let mutants = files.entry(text("file")?).or_default().entry(at).or_default();
        mutants.push(Mutant { id: number("id")?, genre, replacement });
        count = count.max(number("id")? + 1);
    }
    let crates: std::collections::BTreeSet<&str> =
        files.keys().filter_map(|file| file.split("/src/").next()).collect();
    for (file, mutants) in files {
        weave_file(&Path::new(&tree).join(file), mutants).map_err(|e| format!("{file}: {e}"))?;
    }
    for name in crates {
        let path = Path::new(&tree).join(name).join("src/lib.rs");
        let switch = include_str!("switch.rs.txt").replace("COUNT", &count.to_string());
        let source = std::fs::read_to_string(&path)?;
        std::fs::write(path, format!("#![allow(warnings)]\n{source}\n{switch}"))?;
    }
    Ok(())
}

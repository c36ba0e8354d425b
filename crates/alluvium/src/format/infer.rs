//! The fields of a state, found from its first rows; and the fields that later rows add.
//!
//! From JSON: integers that fit are BIGINT; a number with a fraction or an exponent makes DOUBLE, also
//! together with integers, as long as a DOUBLE holds those exactly; strings are STRING, also when they look
//! like times (declare TIMESTAMP for those); objects are STRUCT, arrays are ARRAY. A field that is only null
//! or empty has no type yet and is left out. From CSV: the same for numbers and booleans, and a column of only
//! RFC 3339 times is TIMESTAMP, of only days DATE, of anything mixed STRING.
//!
//! Never chosen: a type that would lose digits. An integer beyond 64 bits, or a decimal of more than
//! 17 digits, asks for a declared schema.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use alluvium_log::event_time_type;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};

use super::ddl::{format_type, list_type};
use super::fault::{Fault, excerpt_number, quote_name};
use super::json::Json;
use super::number;
use super::object::tells_type;
use super::time;

/// The fields known so far, to which each row may add.
#[derive(Debug)]
pub struct Inference {
    root: Object,
}

/// What is known of the type of one field.
#[derive(Debug)]
enum Node {
    Unknown,
    /// Declared or stored: whether a value fits is for the builder to say.
    Fixed(DataType),
    Bool,
    /// Whether one of the integers is beyond what a DOUBLE holds exactly.
    Integer {
        is_big: bool,
    },
    Double,
    Text,
    List {
        item: Box<Node>,
        /// The list was declared, with this field.
        declared: Option<FieldRef>,
    },
    Map {
        value: Box<Node>,
        declared: DataType,
    },
    Object {
        object: Object,
        is_declared: bool,
    },
}

#[derive(Debug, Default)]
struct Object {
    members: Vec<Member>,
    places: HashMap<String, usize>,
    /// Each name in lower case, to find those that differ only by case.
    folded: HashMap<String, usize>,
}

#[derive(Debug)]
struct Member {
    name: String,
    node: Node,
    declared: Option<FieldRef>,
}

impl Inference {
    /// Starts from the fields that are declared or stored already; none when everything is to be found.
    pub fn new(fields: &Fields) -> Self {
        Self { root: Object::declared(fields) }
    }

    /// Takes in one row: the fields of its object.
    ///
    /// # Errors
    /// The row contradicts the rows before it, or holds a number that no inferred type keeps. Rows after it may
    /// still be taken in, but what this row added before its fault stays.
    pub fn add<'a>(
        &mut self,
        entries: impl Iterator<Item = (&'a str, &'a Json<'a>)>,
    ) -> Result<(), Fault> {
        for (at, (name, value)) in entries.enumerate() {
            self.root.add(at, name, value)?;
        }
        Ok(())
    }

    /// The declared fields in their order, then the found ones in the order they were met.
    pub fn finish(&self) -> Fields {
        self.root.fields()
    }
}

impl Object {
    fn declared(fields: &Fields) -> Self {
        let mut object = Self::default();
        for field in fields {
            object.insert(Member {
                name: field.name().clone(),
                node: Node::declared(field.data_type()),
                declared: Some(Arc::clone(field)),
            });
        }
        object
    }

    fn insert(&mut self, member: Member) {
        self.places.insert(member.name.clone(), self.members.len());
        self.folded.insert(member.name.to_lowercase(), self.members.len());
        self.members.push(member);
    }

    fn add(&mut self, guess: usize, name: &str, value: &Json<'_>) -> Result<(), Fault> {
        let place = match self.members.get(guess) {
            Some(member) if member.name == name => Some(guess),
            _ => self.places.get(name).copied(),
        };
        let place = match place {
            Some(place) => place,
            None => {
                self.refuse_other_case(name)?;
                let member = Member { name: name.to_owned(), node: Node::Unknown, declared: None };
                self.insert(member);
                self.members.len() - 1
            }
        };
        match self.members.get_mut(place) {
            Some(member) => member.node.add(value).map_err(|fault| fault.in_field(name)),
            None => Ok(()),
        }
    }

    fn refuse_other_case(&self, name: &str) -> Result<(), Fault> {
        let known = self.folded.get(&name.to_lowercase()).and_then(|at| self.members.get(*at));
        match known {
            Some(known) => Err(case_clash(name, &known.name)),
            None => Ok(()),
        }
    }

    fn fields(&self) -> Fields {
        let field = |member: &Member| -> Option<FieldRef> {
            let data_type = member.node.data_type()?;
            Some(Arc::new(match &member.declared {
                Some(declared) => declared.as_ref().clone().with_data_type(data_type),
                None => Field::new(&member.name, data_type, true),
            }))
        };
        self.members.iter().filter_map(field).collect()
    }
}

/// The refusal of two names that differ only by case.
pub(crate) fn case_clash(name: &str, known: &str) -> Fault {
    Fault::new(format!(
        "the field {} differs only by case from the field {}, which Delta does not tell apart: use one spelling",
        quote_name(name),
        quote_name(known)
    ))
}

impl Node {
    fn declared(data_type: &DataType) -> Self {
        match data_type {
            DataType::Struct(fields) => {
                Self::Object { object: Object::declared(fields), is_declared: true }
            }
            DataType::List(element) => Self::List {
                item: Box::new(Self::declared(element.data_type())),
                declared: Some(Arc::clone(element)),
            },
            DataType::Map(entry, _) => match entry.data_type() {
                DataType::Struct(pair) if pair.len() == 2 => Self::Map {
                    value: Box::new(Self::declared(pair[1].data_type())),
                    declared: data_type.clone(),
                },
                _ => Self::Fixed(data_type.clone()),
            },
            other => Self::Fixed(other.clone()),
        }
    }

    fn add(&mut self, value: &Json<'_>) -> Result<(), Fault> {
        if matches!(value, Json::Null) {
            return Ok(());
        }
        if matches!(self, Self::Unknown) {
            *self = Self::first(value)?;
        }
        match (&mut *self, value) {
            (Self::Fixed(_), _) => Ok(()),
            (Self::Object { object, .. }, Json::Object(entries)) => add_entries(object, entries),
            (Self::List { item, .. }, Json::Array(values)) => {
                for (index, value) in values.iter().enumerate() {
                    item.add(value).map_err(|fault| fault.at_index(index))?;
                }
                Ok(())
            }
            (Self::Map { value: node, .. }, Json::Object(entries)) => {
                entries.iter().try_for_each(|(name, value)| {
                    node.add(value).map_err(|fault| fault.in_field(name))
                })
            }
            (Self::Map { value: node, .. }, Json::Array(pairs)) => {
                pairs.iter().try_for_each(|pair| match pair {
                    Json::Array(pair) => pair.get(1).map_or(Ok(()), |value| node.add(value)),
                    _ => Ok(()),
                })
            }
            // What is declared is for the builder to refuse.
            (Self::Map { .. }, _) => Ok(()),
            (Self::Object { is_declared: true, .. }, _) => Ok(()),
            (Self::List { declared: Some(_), .. }, _) => Ok(()),
            (Self::Unknown, _) => Ok(()),
            (node, value) => node.add_scalar(value),
        }
    }

    /// The kind that the first value tells.
    fn first(value: &Json<'_>) -> Result<Self, Fault> {
        Ok(match value {
            Json::Null => Self::Unknown,
            Json::Bool(_) => Self::Bool,
            Json::Number(text) => number_node(text)?,
            Json::String(_) => Self::Text,
            Json::Array(_) => Self::List { item: Box::new(Self::Unknown), declared: None },
            Json::Object(_) if !tells_type(value) => Self::Unknown,
            Json::Object(_) => Self::Object { object: Object::default(), is_declared: false },
        })
    }

    fn add_scalar(&mut self, value: &Json<'_>) -> Result<(), Fault> {
        let merged = match (&*self, value) {
            (Self::Bool, Json::Bool(_)) | (Self::Text, Json::String(_)) => return Ok(()),
            (Self::Integer { is_big }, Json::Number(text)) => match number_node(text)? {
                Self::Integer { is_big: also_big } => Self::Integer { is_big: *is_big || also_big },
                _ if *is_big => return Err(mixed_numbers()),
                double => double,
            },
            (Self::Double, Json::Number(text)) => match number_node(text)? {
                Self::Integer { is_big: true } => return Err(mixed_numbers()),
                _ => return Ok(()),
            },
            _ => {
                let known =
                    self.data_type().map_or_else(|| self.kind().into(), |t| format_type(&t));
                return Err(Fault::new(format!(
                    "{} does not fit {known}, which the rows before it have: declare a schema for the state, \
                     or mend the rows",
                    value.describe(),
                )));
            }
        };
        *self = merged;
        Ok(())
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::List { .. } => "ARRAY",
            Self::Object { .. } => "STRUCT",
            _ => "another type",
        }
    }

    fn data_type(&self) -> Option<DataType> {
        Some(match self {
            Self::Unknown => return None,
            Self::Fixed(data_type) => data_type.clone(),
            Self::Bool => DataType::Boolean,
            Self::Integer { .. } => DataType::Int64,
            Self::Double => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::List { item, declared: None } => list_type(item.data_type()?, true),
            Self::List { item, declared: Some(element) } => {
                let item = item.data_type().unwrap_or_else(|| element.data_type().clone());
                DataType::List(Arc::new(element.as_ref().clone().with_data_type(item)))
            }
            Self::Map { value, declared } => return Some(map_with_value(value, declared)),
            Self::Object { object, is_declared } => {
                let fields = object.fields();
                if fields.is_empty() && !is_declared {
                    return None;
                }
                DataType::Struct(fields)
            }
        })
    }
}

fn add_entries(object: &mut Object, entries: &[(Cow<'_, str>, Json<'_>)]) -> Result<(), Fault> {
    entries.iter().enumerate().try_for_each(|(at, (name, value))| object.add(at, name, value))
}

fn map_with_value(value: &Node, declared: &DataType) -> DataType {
    let grown = || {
        let DataType::Map(entry, sorted) = declared else { return None };
        let DataType::Struct(pair) = entry.data_type() else { return None };
        let [key, old_value] = &**pair else { return None };
        let new_value = old_value.as_ref().clone().with_data_type(value.data_type()?);
        let pair = Fields::from(vec![Arc::clone(key), Arc::new(new_value)]);
        let entry = entry.as_ref().clone().with_data_type(DataType::Struct(pair));
        Some(DataType::Map(Arc::new(entry), *sorted))
    };
    grown().unwrap_or_else(|| declared.clone())
}

/// More digits than this no double keeps, however it was printed.
const DOUBLE_DIGITS: usize = 17;

fn number_node(text: &str) -> Result<Node, Fault> {
    let refused = |why: &str, remedy: &str| {
        Err(Fault::new(format!(
            "the number {} {why}: declare a schema in which this field is {remedy}",
            excerpt_number(text)
        )))
    };
    if number::is_integer(text) {
        return match text.parse::<i64>() {
            Ok(_) => Ok(Node::Integer { is_big: number::double(text).is_err() }),
            Err(_) => refused("does not fit BIGINT", "DECIMAL(38,0) or STRING"),
        };
    }
    if number::significant_digits(text) > DOUBLE_DIGITS {
        return refused(
            "has more digits than a DOUBLE keeps",
            "DECIMAL(p,s) or STRING, or DOUBLE if the nearest double will do",
        );
    }
    match number::double(text) {
        Ok(_) => Ok(Node::Double),
        Err(why) => refused(&format!("can't be a DOUBLE ({why})"), "DECIMAL(p,s) or STRING"),
    }
}

fn mixed_numbers() -> Fault {
    Fault::new(
        "it has integers that a DOUBLE can't hold exactly, together with decimals: declare a schema in which this \
         field is DECIMAL(p,s), DOUBLE or STRING",
    )
}

/// The type of a CSV column, found from its cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CellInference {
    integers: bool,
    has_big_integer: bool,
    doubles: bool,
    booleans: bool,
    days: bool,
    times: bool,
    texts: bool,
}

impl CellInference {
    /// Takes in a cell that is not null.
    pub(crate) fn add(&mut self, cell: &str) -> Result<(), Fault> {
        if self.texts {
            return Ok(());
        }
        if number::is_json_number(cell) {
            match number_node(cell)? {
                Node::Integer { is_big } => {
                    self.integers = true;
                    self.has_big_integer |= is_big;
                }
                _ => self.doubles = true,
            }
        } else if number::named_float(cell).is_some() {
            self.doubles = true;
        } else if cell.eq_ignore_ascii_case("true") || cell.eq_ignore_ascii_case("false") {
            self.booleans = true;
        } else if time::date(cell).is_ok() {
            self.days = true;
        } else if time::timestamp(cell).is_ok() {
            self.times = true;
        } else {
            self.texts = true;
        }
        Ok(())
    }

    /// The type that keeps every cell; none when there was no cell.
    pub(crate) fn finish(self) -> Result<Option<DataType>, Fault> {
        let numbers = self.integers || self.doubles;
        let kinds = [numbers, self.booleans, self.days, self.times, self.texts];
        let data_type = match kinds.iter().filter(|kind| **kind).count() {
            0 => return Ok(None),
            1 if self.doubles && self.has_big_integer => return Err(mixed_numbers()),
            1 if self.doubles => DataType::Float64,
            1 if self.integers => DataType::Int64,
            1 if self.booleans => DataType::Boolean,
            1 if self.days => DataType::Date32,
            1 if self.times => event_time_type(),
            _ => DataType::Utf8,
        };
        Ok(Some(data_type))
    }
}

/// The fields of these JSON objects, and the names of those whose type they do not tell.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](alluvium_log::ErrorKind::InvalidInput) naming the row (from 0), the field and the remedy.
pub fn infer_fields(rows: &[Json<'_>]) -> alluvium_log::Result<(Fields, Vec<String>)> {
    let mut inference = Inference::new(&Fields::empty());
    for (row, value) in rows.iter().enumerate() {
        let Json::Object(entries) = value else {
            return Err(alluvium_log::Error::invalid(format!(
                "row {row}: an object is needed, not {}",
                value.describe()
            )));
        };
        let added = inference.add(entries.iter().map(|(name, value)| (name.as_ref(), value)));
        added.map_err(|fault| alluvium_log::Error::from(fault).context(format!("row {row}")))?;
    }
    let fields = inference.finish();
    let is_known = |name: &String| fields.find(name).is_some();
    let names = inference.root.members.iter().map(|member| member.name.clone());
    let left_out = names.filter(|name| !is_known(name)).collect();
    Ok((fields, left_out))
}

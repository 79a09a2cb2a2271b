mod bookmark;
mod envelope;
mod fixtures;
mod form;
mod hostile;
mod object;
mod reader;
mod splitter;

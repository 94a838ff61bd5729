package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// node is a value of a configuration: a scalar, a mapping, or nothing.
type node struct {
	// line is where it is, 0 if that is not known.
	line     int
	text     string
	hasText  bool
	isQuoted bool
	entries  []entry
}

type entry struct {
	key   string
	value *node
}

func (n *node) isScalar() bool { return n.hasText }
func (n *node) isEmpty() bool  { return !n.hasText && len(n.entries) == 0 }

func (n *node) wrong(format string, args ...any) error {
	if n.line == 0 {
		return fmt.Errorf(format, args...)
	}
	return fmt.Errorf("line %d: %s", n.line, fmt.Sprintf(format, args...))
}

// yamlSection reads one section of a YAML file: block mappings, flow mappings of scalars on one line, and scalars. It
// is strict: anything else within the section is an error that names its line. Other sections are skipped.
func yamlSection(text, name string) (*node, error) {
	lines, err := yamlLines(text, name)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	parser := &yamlParser{lines: lines}
	root := &node{}
	if err := parser.mapping(root, lines[0].indent); err != nil {
		return nil, err
	}
	if len(parser.lines) > 0 {
		return nil, parser.lines[0].wrong("the indentation fits no line above")
	}
	if len(root.entries) > 1 {
		return nil, root.entries[1].value.wrong("%s is there twice", name)
	}
	return root.entries[0].value, nil
}

type yamlLine struct {
	number, indent int
	text           string
}

func (l yamlLine) wrong(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", l.number, fmt.Sprintf(format, args...))
}

// yamlLines are the lines of one section of the file, without blank ones and comments.
func yamlLines(text, name string) ([]yamlLine, error) {
	var lines []yamlLine
	isWithin := false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, " \r")
		content := strings.TrimLeft(line, " ")
		if content == "" || content[0] == '#' {
			continue
		}
		one := yamlLine{number: i + 1, indent: len(line) - len(content), text: content}
		if content[0] == '\t' {
			return nil, one.wrong("there is a tab; indent with spaces")
		}
		if one.indent == 0 && content != "---" {
			key, _, err := splitKey(one)
			isWithin = err == nil && key == name
			if err == nil && key != name {
				continue
			}
			if err != nil && !strings.HasPrefix(content, "- ") && content[0] != '}' && content[0] != ']' {
				return nil, err
			}
		}
		if isWithin {
			if strings.Contains(line, "\t") {
				return nil, one.wrong("there is a tab; indent with spaces")
			}
			lines = append(lines, one)
		}
	}
	return lines, nil
}

// yamlParser takes lines from the front.
type yamlParser struct{ lines []yamlLine }

func (p *yamlParser) mapping(into *node, indent int) error {
	for len(p.lines) > 0 && p.lines[0].indent == indent {
		line := p.lines[0]
		p.lines = p.lines[1:]
		key, rest, err := splitKey(line)
		if err != nil {
			return err
		}
		for _, other := range into.entries {
			if other.key == key {
				return line.wrong("%s is there twice", key)
			}
		}
		value := &node{line: line.number}
		into.entries = append(into.entries, entry{key, value})
		if err := scalarOrFlow(value, line, rest); err != nil {
			return err
		}
		if len(p.lines) == 0 || p.lines[0].indent <= indent {
			continue
		}
		if !value.isEmpty() || rest != "" {
			return p.lines[0].wrong("%s has a value already; this line is indented below it", key)
		}
		if err := p.mapping(value, p.lines[0].indent); err != nil {
			return err
		}
		if len(p.lines) > 0 && p.lines[0].indent > indent {
			return p.lines[0].wrong("the indentation fits no line above")
		}
	}
	return nil
}

// splitKey splits `key: value`. The value is without its comment.
func splitKey(line yamlLine) (key, value string, err error) {
	key, rest, isKey := strings.Cut(line.text, ":")
	if !isKey || rest != "" && rest[0] != ' ' {
		return "", "", line.wrong("%.60q is not read here; write `key: value`, one to a line", line.text)
	}
	key = strings.TrimSpace(key)
	if len(key) > 1 && (key[0] == '"' || key[0] == '\'') && key[len(key)-1] == key[0] {
		key = key[1 : len(key)-1]
	}
	if key == "" || strings.ContainsAny(key[:1], "-?[]{}&*!|>%@`\"'") {
		return "", "", line.wrong("%.60q is not read here; write `key: value`, one to a line", line.text)
	}
	return key, strings.TrimSpace(withoutComment(rest)), nil
}

func withoutComment(text string) string {
	quote := byte(0)
	for i := range len(text) {
		switch char := text[i]; {
		case quote != 0 && char == '\\' && quote == '"':
			if i+1 < len(text) && text[i+1] == '"' {
				quote = 'x' // an escaped quote: scalar refuses it with a message of its own
			}
		case quote != 0 && char == quote:
			quote = 0
		case quote == 0 && (char == '"' || char == '\'') && strings.TrimSpace(text[:i]) == "":
			quote = char
		case quote == 0 && char == '#' && (i == 0 || text[i-1] == ' '):
			return text[:i]
		}
	}
	return text
}

// scalarOrFlow reads what stands behind a key.
func scalarOrFlow(into *node, line yamlLine, text string) error {
	if !strings.HasPrefix(text, "{") {
		return scalar(into, line, text)
	}
	if !strings.HasSuffix(text, "}") {
		return line.wrong("%.60q does not end on its line; write `key: value`, one to a line", text)
	}
	inner := strings.TrimSpace(text[1 : len(text)-1])
	if inner == "" {
		return nil
	}
	for _, pair := range strings.Split(inner, ",") {
		one := yamlLine{number: line.number, text: strings.TrimSpace(pair)}
		key, rest, err := splitKey(one)
		if err != nil {
			return err
		}
		value := &node{line: line.number}
		if err := scalar(value, one, rest); err != nil {
			return err
		}
		into.entries = append(into.entries, entry{key, value})
	}
	return nil
}

func scalar(into *node, line yamlLine, text string) error {
	switch {
	case text == "" || text == "~" || text == "null":
		return nil
	case text[0] == '"':
		unquoted, err := strconv.Unquote(text)
		if err != nil {
			return line.wrong("%.60s is not a quoted text", text)
		}
		into.text, into.isQuoted = unquoted, true
	case text[0] == '\'':
		if len(text) < 2 || text[len(text)-1] != '\'' || strings.Contains(text[1:len(text)-1], "'") {
			return line.wrong("%.60s is not a quoted text", text)
		}
		into.text, into.isQuoted = text[1:len(text)-1], true
	case strings.ContainsAny(text[:1], "[]{}&*!|>%@`,") || strings.Contains(text, ": "):
		return line.wrong("%.60q is not read here; quote it, or write `key: value`, one to a line", text)
	default:
		into.text = text
	}
	into.hasText = true
	return nil
}

// jsonSection reads one member of a JSON object.
func jsonSection(text []byte, name string) (*node, error) {
	var file map[string]json.RawMessage
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("the configuration is not a JSON object: %w", err)
	}
	section, isThere := file[name]
	if !isThere {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(section))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("the configuration is not JSON: %w", err)
	}
	return jsonNode(name, value)
}

func jsonNode(path string, value any) (*node, error) {
	switch value := value.(type) {
	case nil:
		return &node{}, nil
	case bool:
		return &node{text: strconv.FormatBool(value), hasText: true}, nil
	case string:
		return &node{text: value, hasText: true, isQuoted: true}, nil
	case json.Number:
		return &node{text: value.String(), hasText: true}, nil
	case map[string]any:
		made := &node{}
		for key, inner := range value {
			innerNode, err := jsonNode(path+"."+key, inner)
			if err != nil {
				return nil, err
			}
			made.entries = append(made.entries, entry{key, innerNode})
		}
		sort.Slice(made.entries, func(i, j int) bool { return made.entries[i].key < made.entries[j].key })
		return made, nil
	}
	return nil, fmt.Errorf("%s is a list; it must be a value or an object", path)
}

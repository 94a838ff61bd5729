package solehold

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// frame is one frame of server-sent events.
type frame struct {
	event string
	data  []byte
}

// frames reads server-sent events, with lines that end in any of the three ways.
type frames struct {
	lines *bufio.Scanner
}

func newFrames(stream io.Reader) *frames {
	lines := bufio.NewScanner(stream)
	lines.Buffer(make([]byte, 0, 4096), frameBytesMax)
	lines.Split(splitLine)
	return &frames{lines}
}

// next reads the next frame that has data, or returns io.EOF.
func (f *frames) next() (frame, error) {
	next := frame{event: "message"}
	size, hasData := 0, false
	for f.lines.Scan() {
		line := f.lines.Bytes()
		if len(line) == 0 {
			if hasData {
				return next, nil
			}
			next, size = frame{event: "message"}, 0
			continue
		}
		if size += len(line); size > frameBytesMax {
			return frame{}, unknown("%v", errFrameTooLarge)
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			next.event = string(value)
		case "data":
			if hasData {
				next.data = append(next.data, '\n')
			}
			next.data, hasData = append(next.data, value...), true
		}
	}
	switch err := f.lines.Err(); err {
	case nil:
		return frame{}, io.EOF
	case bufio.ErrTooLong:
		return frame{}, unknown("%v", errFrameTooLarge)
	default:
		return frame{}, err
	}
}

var errFrameTooLarge = fmt.Errorf("a frame of the stream has more than %d bytes", frameBytesMax)

// splitLine ends a line at LF, CR LF or CR. What the stream ends with, without the end of a line, is no line.
func splitLine(data []byte, atEOF bool) (int, []byte, error) {
	end := bytes.IndexAny(data, "\r\n")
	switch {
	case end < 0 && atEOF:
		return len(data), nil, nil
	case end < 0:
		return 0, nil, nil
	case data[end] == '\n':
		return end + 1, data[:end], nil
	case end+1 < len(data) && data[end+1] == '\n':
		return end + 2, data[:end], nil
	case end+1 < len(data) || atEOF:
		return end + 1, data[:end], nil
	}
	return 0, nil, nil // a carriage return may be half of a line's end
}

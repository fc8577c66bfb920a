#!/bin/sh
# Makes the spoken samples again. Needs espeak-ng (1.51 was used) and sox (14.4).
#   sh samples/make.sh
# espeak-ng gives 22,050 Hz; sox brings it to the rate, half of full scale and 0.3 s of quiet at both ends. Its dither
# (-R: the same in each run, so the bytes are too) makes the quiet a real one, of the last bit, not digital zero.
set -eu
cd "$(dirname "$0")"
spoken=$(mktemp)
trap 'rm -f "$spoken"' EXIT

say() { # file, rate, voice, words
  espeak-ng -v "$3" -s 160 -g 1 -w "$spoken" "$4"
  sox -R "$spoken" -r "$2" -b 16 -c 1 "$1" gain -n -6 pad 0.3 0.3
}

# What a person says to the Watch: its rate.
say question.wav 16000 en-us+f2 'What is the weather in Tokyo today?'
say interruption.wav 16000 en-us+f2 'Wait, please stop talking.'
# What an engine says: its rate, and another voice.
say greeting.wav 24000 en-us+f5 'Hello, how can I help you?'
say filler.wav 24000 en-us+f5 'One moment, let me look.'
say answer.wav 24000 en-us+f5 'It is sunny in Tokyo, twenty one degrees.'
say long-answer.wav 24000 en-us+f5 'Here is the weather for the week. On Monday it is sunny and warm.
On Tuesday clouds come in from the west, and in the evening there may be some rain.
On Wednesday the wind is strong in the morning, and on Thursday it is cold but dry.
On Friday the sun is back, and the weekend will be fine, with a clear sky and a light wind from the sea.'

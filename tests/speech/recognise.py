"""How many words of the human speech in samples/ are recognised after each impairment, beside the source file.

    recognise.py FOLDER

FOLDER holds source.wav and the WAVs to compare with it, as `impair` writes them. Prints a table; exit code 1 when one is
recognised worse than is allowed for.
"""

import json
import multiprocessing
import pathlib
import sys
import wave

from pocketsphinx import Decoder

RATE = 16_000

# How many more of a hundred words may be wrong than of the source's. The recogniser wavers by itself: the codec alone, which
# no ear tells from the source, costs it 3 to 7.
ALLOWED = 10
# What was lost in a burst nobody brings back.
ALLOWED_FOR = {"down-5-bursts": 15, "down-10-random": 15, "down-10-bursts": 20}


def main():
    folder = pathlib.Path(sys.argv[1])
    samples = pathlib.Path(__file__).resolve().parents[2] / "samples" / "words.json"
    sentences = [line for line in json.loads(samples.read_text()) if line["file"].startswith("austen")]
    spoken = [word for sentence in sentences for word in sentence["words"].split()]
    names = sorted(path.stem for path in folder.glob("*.wav"))
    with multiprocessing.Pool(initializer=load) as pool:
        heard = dict(zip(names, pool.map(recognise, [folder / f"{name}.wav" for name in names], chunksize=1)))
    rates = {name: 100 * errors(spoken, words) / len(spoken) for name, words in heard.items()}
    print(f"{len(spoken)} words; wrong, in percent:")
    failed = False
    for name, rate in sorted(rates.items(), key=lambda pair: (pair[0] != "source", pair[0])):
        worse, most = rate - rates["source"], ALLOWED_FOR.get(name, ALLOWED)
        bad = worse > most
        failed |= bad
        print(f"  {name:16} {rate:5.1f}  {worse:+5.1f} of {most:+}{'  too many' if bad else ''}")
        if bad or "-v" in sys.argv:
            print("    " + " ".join(heard[name]))
    sys.exit(failed)


def load():
    # Less thorough than the default and as good with this speech, in a third of the time.
    globals()["decoder"] = Decoder(samprate=RATE, loglevel="ERROR", fwdflat=False, maxhmmpf=5000, ds=2)


def recognise(path):
    with wave.open(str(path)) as sound:
        assert sound.getframerate() == RATE
        decoder.start_utt()
        decoder.process_raw(sound.readframes(sound.getnframes()), full_utt=True)
        decoder.end_utt()
    words = decoder.hyp().hypstr.split() if decoder.hyp() else []
    return ["mister" if word == "mr" else word for word in words]


def errors(spoken, heard):
    """Words to change, leave out and add to get from one to the other (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for before, word in enumerate(spoken, 1):
        diagonal, row[0] = row[0], before
        for at, other in enumerate(heard, 1):
            diagonal, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, diagonal + (word != other))
    return row[-1]


if __name__ == "__main__":
    main()

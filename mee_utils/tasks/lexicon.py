"""The words of the made world, English and French side by side.

A word is written once, with everything the grammar needs to inflect it. French nouns carry their gender, adjectives all
four forms (and the fifth that stands before a vowel, as in "un vieil arbre"), participles their masculine singular.
"""

from __future__ import annotations

from dataclasses import dataclass

FEMALE_NAMES = (
    "Alice Anna Bella Camille Carla Clara Diana Elena Emma Eva Flora Gina Hanna Ines Irene Julia Karin Laura Lea Lina "
    "Lucia Maria Marta Mina Nadia Nina Nora Olga Paula Petra Rita Rosa Sara Selma Sofia Tania Tina Vera Wanda Zoe"
).split()
MALE_NAMES = (
    "Adam Albert Anton Boris Bruno Carlos David Dennis Eric Felix Frank Gilles Hugo Igor Ivan Jacob Jonas Karl Leo Louis "
    "Lucas Marc Martin Max Nico Noah Omar Oscar Otto Paul Peter Ralph Robert Samir Simon Theo Thomas Victor Walter Yann"
).split()
# Cities that are written alike in both languages.
CITIES = (
    "Amiens Angers Bergen Berlin Bilbao Bordeaux Boston Brest Bristol Caen Calais Cannes Casablanca Chicago Dallas Denver "
    "Dijon Dublin Florence Glasgow Grenoble Houston Istanbul Kyoto Leeds Leipzig Lille Lima Limoges Lyon Madrid Marseille "
    "Metz Miami Milan Monaco Munich Nairobi Nancy Nantes Naples Nice Odessa Osaka Oslo Oxford Paris Porto Prague Rennes Rome "
    "Rouen Toronto Toulouse Tours Tunis Turin Utrecht Zurich"
).split()
JOBS = (
    "baker doctor teacher driver farmer painter nurse lawyer singer writer builder gardener waiter judge tailor plumber "
    "dentist miner sailor guide clerk barber chemist dancer editor actor artist engineer"
).split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TRANSPORTS = "train bus car boat plane bicycle taxi tram".split()
DISHES = "soup rice bread fish cheese pasta salad honey cake chocolate meat beans eggs butter pizza fruit".split()
NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
).split()
FRENCH_NUMBERS = "un deux trois quatre cinq six sept huit neuf dix onze douze".split()


@dataclass(frozen=True)
class Noun:
    """A countable noun. `gender` is "m" or "f"; French plurals are written out where adding "s" would be wrong."""

    english: str
    french: str
    gender: str
    english_plural: str = ""
    french_plural: str = ""

    def in_english(self, plural: bool) -> str:
        return (self.english_plural or self.english + "s") if plural else self.english

    def in_french(self, plural: bool) -> str:
        return (self.french_plural or self.french + "s") if plural else self.french


@dataclass(frozen=True)
class Adjective:
    """An adjective. `before` says that it stands before its noun in French; `liaison` is its form before a vowel."""

    english: str
    masculine: str
    feminine: str
    masculine_plural: str = ""
    before: bool = False
    liaison: str = ""

    def in_french(self, gender: str, plural: bool) -> str:
        if gender == "f":
            return self.feminine + ("s" if plural else "")
        if plural:
            return self.masculine_plural or self.masculine + "s"
        return self.masculine


@dataclass(frozen=True)
class Verb:
    """A verb in the past: English preterite, French past participle (masculine singular; agrees by -e, -s, -es)."""

    english: str
    participle: str


def _nouns(rows: str) -> tuple[Noun, ...]:
    return tuple(Noun(*row.strip().split("|")) for row in rows.strip().splitlines())


THINGS = _nouns("""
    apple|pomme|f
    bag|sac|m
    ball|balle|f
    basket|panier|m
    bed|lit|m
    bell|cloche|f
    bench|banc|m|benches
    bicycle|vélo|m
    boat|bateau|m||bateaux
    book|livre|m
    bottle|bouteille|f
    bowl|bol|m
    box|boîte|f|boxes
    bridge|pont|m
    camera|caméra|f
    candle|bougie|f
    car|voiture|f
    carpet|tapis|m||tapis
    chair|chaise|f
    church|église|f|churches
    clock|horloge|f
    coat|manteau|m||manteaux
    cup|tasse|f
    curtain|rideau|m||rideaux
    desk|bureau|m||bureaux
    door|porte|f
    dress|robe|f|dresses
    drum|tambour|m
    flag|drapeau|m||drapeaux
    flower|fleur|f
    flute|flûte|f
    fork|fourchette|f
    garden|jardin|m
    gift|cadeau|m||cadeaux
    glass|verre|m|glasses
    glove|gant|m
    guitar|guitare|f
    hammer|marteau|m||marteaux
    hat|chapeau|m||chapeaux
    house|maison|f
    jar|bocal|m||bocaux
    key|clé|f
    knife|couteau|m|knives|couteaux
    ladder|échelle|f
    lamp|lampe|f
    letter|lettre|f
    map|carte|f
    mirror|miroir|m
    needle|aiguille|f
    newspaper|journal|m||journaux
    orange|orange|f
    painting|tableau|m||tableaux
    pear|poire|f
    pen|stylo|m
    pencil|crayon|m
    piano|piano|m
    plate|assiette|f
    ring|bague|f
    rope|corde|f
    scarf|écharpe|f|scarves
    shirt|chemise|f
    shoe|chaussure|f
    sofa|canapé|m
    spoon|cuillère|f
    stamp|timbre|m
    statue|statue|f
    stone|pierre|f
    suitcase|valise|f
    sword|épée|f
    table|table|f
    ticket|billet|m
    tool|outil|m
    toy|jouet|m
    tree|arbre|m
    umbrella|parapluie|m
    vase|vase|m
    wheel|roue|f
    window|fenêtre|f
""")
ANIMALS = _nouns("""
    bird|oiseau|m||oiseaux
    cat|chat|m
    cow|vache|f
    dog|chien|m
    duck|canard|m
    goat|chèvre|f
    horse|cheval|m||chevaux
    mouse|souris|f|mice|souris
    pig|cochon|m
    rabbit|lapin|m
    sheep|mouton|m|sheep
    tortoise|tortue|f
""")
IMMOVABLE = ("bridge", "church", "garden", "house", "tree", "window", "door")
PORTABLE = tuple(thing for thing in THINGS if thing.english not in IMMOVABLE)
PEOPLE = _nouns("""
    aunt|tante|f
    boy|garçon|m
    brother|frère|m
    cousin|cousin|m
    father|père|m
    girl|fille|f
    grandmother|grand-mère|f||grands-mères
    king|roi|m
    man|homme|m|men
    mother|mère|f
    prince|prince|m
    princess|princesse|f|princesses
    queen|reine|f
    sister|sœur|f
    uncle|oncle|m
    woman|femme|f|women
""")
PLACES = _nouns("""
    bank|banque|f
    barn|grange|f
    bridge|pont|m
    castle|château|m||châteaux
    cellar|cave|f
    church|église|f|churches
    farm|ferme|f
    forest|forêt|f
    garden|jardin|m
    hospital|hôpital|m||hôpitaux
    hotel|hôtel|m
    island|île|f
    kitchen|cuisine|f
    lake|lac|m
    library|bibliothèque|f|libraries
    market|marché|m
    mill|moulin|m
    museum|musée|m
    office|bureau|m||bureaux
    park|parc|m
    river|rivière|f
    school|école|f
    shop|magasin|m
    square|place|f
    station|gare|f
    theatre|théâtre|m
    tower|tour|f
    village|village|m
""")
MEETING_PLACES = tuple(p for p in PLACES if p.english not in ("barn", "bridge", "cellar", "forest", "island", "kitchen", "lake", "river", "village"))
ADJECTIVES = (
    Adjective("black", "noir", "noire"),
    Adjective("blue", "bleu", "bleue"),
    Adjective("green", "vert", "verte"),
    Adjective("grey", "gris", "grise", "gris"),
    Adjective("red", "rouge", "rouge"),
    Adjective("white", "blanc", "blanche"),
    Adjective("yellow", "jaune", "jaune"),
    Adjective("brown", "brun", "brune"),
    Adjective("purple", "violet", "violette"),
    Adjective("broken", "cassé", "cassée"),
    Adjective("clean", "propre", "propre"),
    Adjective("cold", "froid", "froide"),
    Adjective("dirty", "sale", "sale"),
    Adjective("dry", "sec", "sèche"),
    Adjective("empty", "vide", "vide"),
    Adjective("expensive", "cher", "chère"),
    Adjective("famous", "célèbre", "célèbre"),
    Adjective("full", "plein", "pleine"),
    Adjective("heavy", "lourd", "lourde"),
    Adjective("light", "léger", "légère"),
    Adjective("round", "rond", "ronde"),
    Adjective("soft", "doux", "douce", "doux"),
    Adjective("square", "carré", "carrée"),
    Adjective("strange", "étrange", "étrange"),
    Adjective("warm", "chaud", "chaude"),
    Adjective("beautiful", "beau", "belle", "beaux", before=True, liaison="bel"),
    Adjective("big", "grand", "grande", before=True),
    Adjective("new", "nouveau", "nouvelle", "nouveaux", before=True, liaison="nouvel"),
    Adjective("old", "vieux", "vieille", "vieux", before=True, liaison="vieil"),
    Adjective("pretty", "joli", "jolie", before=True),
    Adjective("small", "petit", "petite", before=True),
)
MOODS = (
    Adjective("happy", "heureux", "heureuse", "heureux"),
    Adjective("sad", "triste", "triste"),
    Adjective("tired", "fatigué", "fatiguée"),
    Adjective("angry", "fâché", "fâchée"),
    Adjective("rich", "riche", "riche"),
    Adjective("poor", "pauvre", "pauvre"),
    Adjective("strong", "fort", "forte"),
    Adjective("ready", "prêt", "prête"),
    Adjective("alone", "seul", "seule"),
    Adjective("absent", "absent", "absente"),
)
TRANSITIVE = tuple(
    Verb(*pair.split("/"))
    for pair in (
        "saw/vu bought/acheté found/trouvé sold/vendu lost/perdu painted/peint repaired/réparé carried/porté broke/cassé "
        "drew/dessiné cleaned/nettoyé hid/caché chose/choisi washed/lavé forgot/oublié brought/apporté stole/volé "
        "touched/touché borrowed/emprunté counted/compté"
    ).split()
)
MOTION = (
    Verb("arrived in", "arrivé à"),
    Verb("left for", "parti pour"),
    Verb("went to", "allé à"),
    Verb("returned to", "revenu à"),
    Verb("stayed in", "resté à"),
)
TIMES = (
    ("yesterday", "hier"),
    ("this morning", "ce matin"),
    ("last night", "hier soir"),
    ("last week", "la semaine dernière"),
    ("last year", "l'année dernière"),
    ("on Monday", "lundi"),
    ("on Friday", "vendredi"),
    ("on Sunday", "dimanche"),
    ("in May", "en mai"),
    ("in winter", "en hiver"),
)
WHERE = (("in", "dans"), ("behind", "derrière"), ("in front of", "devant"), ("near", "près de"), ("far from", "loin de"))
